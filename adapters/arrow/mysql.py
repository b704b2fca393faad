"""MySQL's types as text (`decimal(10,2) unsigned`), as column definitions have them, to Arrow.

| MySQL | Arrow |
| --- | --- |
| tinyint, smallint; unsigned smallint | int16; int32 |
| mediumint, int; unsigned int | int32; int64 |
| bigint; unsigned bigint | int64; decimal128(20, 0) |
| float; double, real | float32; float64 |
| decimal(p, s), numeric | decimal128(p, s), from 39 digits on decimal256(p, s); without digits (10, 0) |
| bit(1); bit(n); bit(64) | bool; int64; decimal128(20, 0) |
| date; datetime, timestamp; time; year | date32; timestamp[us]; time64[us]; int32 |
| char, varchar, texts, enum, set, json | string |
| binary, varbinary, blobs, geometries | binary |
"""

from __future__ import annotations

import re

import pyarrow as pa

from replicator.domain.errors import RejectCode

from .json.decimals import decimal_type
from .json.faults import Unfit

TYPE = re.compile(r"\s*(?P<name>[a-z]+(?:\s+precision)?)\s*(?:\((?P<inner>.*)\))?(?P<rest>[a-z\s]*)\Z", re.DOTALL)
WIDE = pa.decimal128(20, 0)
TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json", "nchar", "nvarchar")
BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
SHAPES = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
    "geometrycollection", "geomcollection",
)  # fmt: skip
SIGNED: dict[str, pa.DataType] = {
    "tinyint": pa.int16(),
    "smallint": pa.int16(),
    "mediumint": pa.int32(),
    **dict.fromkeys(("int", "integer"), pa.int32()),
    "bigint": pa.int64(),
}
UNSIGNED = SIGNED | {"smallint": pa.int32(), "int": pa.int64(), "integer": pa.int64(), "bigint": WIDE}
PLAIN: dict[str, pa.DataType] = {
    **dict.fromkeys(("float",), pa.float32()),
    **dict.fromkeys(("double", "real", "double precision"), pa.float64()),
    **dict.fromkeys(("bool", "boolean"), pa.int16()),
    "date": pa.date32(),
    **dict.fromkeys(("datetime", "timestamp"), pa.timestamp("us")),
    "time": pa.time64("us"),
    "year": pa.int32(),
    **dict.fromkeys(TEXTS, pa.string()),
    **dict.fromkeys((*BYTES, *SHAPES), pa.binary()),
}


def arrow_of(said: str) -> pa.DataType:
    """The Arrow type of a type as MySQL says it. Raises Unfit for one that is not known."""
    found = TYPE.match(said.lower())
    name = " ".join(found["name"].split()) if found else ""
    inner, rest = (found["inner"] or "", found["rest"]) if found else ("", "")
    if name in SIGNED:
        return (UNSIGNED if "unsigned" in rest or "zerofill" in rest else SIGNED)[name]
    if name == "bit":
        return _bits(int(inner) if inner.isdigit() else 1)
    if name in ("decimal", "numeric", "dec", "fixed"):
        return _decimal(inner)
    if name in PLAIN:
        return PLAIN[name]
    raise Unfit(RejectCode.MALFORMED, f"{said[:60]!r} is no type of MySQL that is known")


def _bits(count: int) -> pa.DataType:
    if count == 1:
        return pa.bool_()
    return pa.int64() if count < 64 else WIDE


def _decimal(inner: str) -> pa.DataType:
    digits = [part.strip() for part in inner.split(",")] if inner else ["10"]
    if len(digits) > 2 or not all(d.isascii() and d.isdigit() and len(d) < 4 for d in digits):
        raise Unfit(RejectCode.MALFORMED, f"a decimal of {inner[:20]!r} digits is not known")
    arrow = decimal_type(int(digits[0]), int(digits[1]) if len(digits) > 1 else 0)
    return arrow or pa.string()
