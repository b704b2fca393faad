"""Elements of a sequence as the values they were made of, as SQL expressions: `adapters.arrow.sequence_elements` on the
executors."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as sf

from replicator.domain.sequence_elements import ElementForm, get_element

from .types import spark_type


def value_expression(element: Column, kind: pa.DataType) -> Column:
    """The values that these are the elements of, for a type that `domain.sequence_elements.get_display_type` gives, as
    they travel."""
    said = get_element(kind)
    match said.form if said else None:
        case ElementForm.HEX:
            return sf.unhex(element)
        case ElementForm.UNSCALED:
            # 18 digits times 18 digits stay within the 38 that Spark multiplies exactly.
            unit = sf.lit(Decimal(1).scaleb(-max(kind.scale, 0)))
            return (element.cast("decimal(18,0)") * unit).cast(spark_type(kind))
        case ElementForm.DAY:
            return sf.date_from_unix_date(element.cast("int"))
        case ElementForm.MICROSECOND:
            return sf.timestamp_micros(element).cast(spark_type(kind))
    return element.cast(spark_type(kind))
