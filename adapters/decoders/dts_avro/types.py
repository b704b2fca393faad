"""The numbers by which records tell the types of columns, as far as they tell them.

They are the types of MySQL's binlog. Each of them has one column type, whatever the values of a record are, NULL among them:
so records of one table agree about it. Where the number leaves a width or a sign open, the type holds what is usual, and a
value beyond it is a reject. A type whose number is not known is text.
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
"""Each value says its digits, but NULL says none: so a column is text of numbers of any scale, whatever its values."""
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
    """What a type is called, by its number in a source of that kind."""
    known = NAMES.get(number) if source in LIKE_MYSQL else None
    return known or f"type {number} of {source}"


def to_arrow_type(said: str) -> pa.DataType | None:
    """The Arrow type of a type that is called so; None where records do not tell it."""
    return TYPES.get(said)


def to_source_type(said: str) -> str:
    """What `Column.source_type` is of a column of a type that is called so."""
    return VARIABLE_DECIMAL if said == DECIMAL else said
