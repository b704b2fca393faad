"""DTS records in Spark SQL, for notebooks."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.functions import pandas_udf

from ...arrow.record_errors import RecordLimits
from ...spark.types import spark_schema
from .record_printer import PRINTED, print_records

NAME = "dts_binlog_parser"
COLUMNS = pa.schema([field for field in PRINTED if field.name != "error"])


def register_function(spark: SparkSession) -> str:
    """Register `dts_binlog_parser(value)` in the session: a struct of `print_records`, with all fields NULL for bytes
    that are not a DTS record. Returns the name. The executors' Python needs this package."""
    as_function: Any = pandas_udf  # Its stubs lack structs.
    spark.udf.register(NAME, as_function(_parse_records, spark_schema(COLUMNS)))
    return NAME


def _parse_records(values: pd.Series) -> pd.DataFrame:
    rows: pd.DataFrame = print_records(values, RecordLimits()).select(COLUMNS.names).to_pandas()
    return rows
