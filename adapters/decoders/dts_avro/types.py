"""Column types from the type numbers in records.

The numbers are MySQL's binlog types. Each number has exactly one column type, independent of the values of a record and
of NULL, so that all records of a table agree. If the number leaves the width or sign open, the type fits usual values,
and values beyond it are rejected. `messages.layouts` makes a column with an unknown number text.
"""

from __future__ import annotations

import pyarrow as pa

from ..common.mysql_types import VARIABLE_DECIMAL

LIKE_MYSQL = frozenset({"MySQL", "DRDS"})
NAMES = {
    0: "decimal", 1: "tinyint", 2: "smallint", 3: "int", 4: "float", 5: "double", 6: "null", 7: "timestamp", 8: "bigint",
    9: "mediumint", 10: "date", 11: "time", 12: "datetime", 13: "year", 14: "date", 15: "varchar", 16: "bit",
    17: "timestamp", 18: "datetime", 19: "time", 245: "json", 246: "decimal", 247: "enum", 248: "set", 249: "tinytext",
    250: "mediumtext", 251: "longtext", 252: "text", 253: "varchar", 254: "char", 255: "geometry",
}  # fmt: skip
DECIMAL = "decimal"
"""Each value has its own precision, and NULL has none. So the column is text, with numbers of any scale."""
LABELS = ("enum", "set")
TYPES: dict[str, pa.DataType] = {
    "tinyint": pa.int16(),
    "smallint": pa.int32(),
    "mediumint": pa.int32(),
    **dict.fromkeys(("int", "bigint", "bit"), pa.int64()),
    "float": pa.float32(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "datetime": pa.timestamp("us"),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "year": pa.int32(),
    **dict.fromkeys(("varchar", "char", "tinytext", "mediumtext", "longtext", "text"), pa.string()),
    **dict.fromkeys(("json", *LABELS), pa.string()),
    DECIMAL: pa.string(),
    "geometry": pa.binary(),
}


def type_name(source: str, number: int) -> str:
    """The name of a type, from its number in a source of that kind."""
    known = NAMES.get(number) if source in LIKE_MYSQL else None
    return known or f"type {number} of {source}"


def to_arrow_type(said: str) -> pa.DataType | None:
    """The Arrow type of a type name; None for an unknown type, whose column becomes text."""
    return TYPES.get(said)


def to_source_type(said: str) -> str:
    """`Column.source_type` of a column with this type name."""
    return VARIABLE_DECIMAL if said == DECIMAL else said
