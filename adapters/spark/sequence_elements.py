"""Converts elements of a sequence back to their values: `adapters.arrow.sequence_elements` as SQL expressions."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as sf

from replicator.domain.sequence_elements import ElementForm, get_element

from .types import spark_type


def value_expression(element: Column, kind: pa.DataType) -> Column:
    """The values of these elements, in Spark's types. `kind`: a type of
    `domain.sequence_elements.get_display_type`."""
    said = get_element(kind)
    match said.form if said else None:
        case ElementForm.HEX:
            return sf.unhex(element)
        case ElementForm.UNSCALED:
            # The product of two numbers with 18 digits has at most 38, so Spark computes it exactly.
            unit = sf.lit(Decimal(1).scaleb(-max(kind.scale, 0)))
            return (element.cast("decimal(18,0)") * unit).cast(spark_type(kind))
        case ElementForm.DAY:
            return sf.date_from_unix_date(element.cast("int"))
        case ElementForm.MICROSECOND:
            return sf.timestamp_micros(element).cast(spark_type(kind))
    return element.cast(spark_type(kind))
