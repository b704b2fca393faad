"""MySQL types as text (`decimal(10,2) unsigned`, as in column definitions) to Arrow types. DTS sends numbers of types
instead: see `decoders.dts_avro.rows`.

| MySQL | Arrow |
| --- | --- |
| tinyint, smallint; unsigned smallint | int16; int32 |
| mediumint, int; unsigned int | int32; int64 |
| bigint; unsigned bigint, serial | int64; decimal128(20, 0) |
| float; double, real | float32; float64 |
| decimal(p, s), numeric | decimal128(p, s), from 39 digits on decimal256(p, s) |
| decimal without digits | string: numbers of any scale, as TiCDC leaves the digits out |
| bit(1); bit(n); bit(64) | bool; int64; decimal128(20, 0) |
| date; datetime, timestamp; time; year | date32; timestamp[us]; time64[us]; int32 |
| char, varchar, texts, enum, set, json, vector | string |
| binary, varbinary, blobs, geometries | binary |

`find_mysql_reader` returns readers for values in another form: enums and sets as numbers, bytes as text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache, partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import RejectCode

from ...arrow.decimals import MAX_SCALE, NUMBER, decimal_type
from ...arrow.record_errors import ValueMisfit
from ...arrow.text_values import TextReader

VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
"""The source type of numbers of any scale that are stored as text. Targets may have a type for them."""
NUMBERED, LABELLED = " numbered", " labelled"
"""Suffixes of an enum or set type: the message sends its values as numbers, or as text."""
MAX_KNOWN = 1024

_NAME = (
    r"national\s+(?:varchar|char(?:acter)?(?:\s+varying)?)|long\s+(?:varchar|varbinary)|(?:char|character|nchar)\s+varying"
    r"|nchar\s+varchar|double\s+precision|[a-z]\w*"
)
_QUOTED = r"'[^'\\]*(?:\\.[^'\\]*)*'"
TYPE = re.compile(
    rf"\s*(?P<name>{_NAME})\s*(?:\((?P<inner>(?:{_QUOTED}|[^'()])*)\))?(?P<rest>[^()].*)?\Z",
    re.DOTALL | re.ASCII | re.IGNORECASE,
)
LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
ESCAPED = re.compile(r"''|\\(.)", re.DOTALL)
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "b": "\b", "Z": "\x1a"}
ORDINAL = r"\A[0-9]{1,20}\z"
PLAIN_NUMBER = r"\A-?[0-9]+(?:\.[0-9]+)?\z"
WELL_KNOWN_TEXT = r"(?i)\A\s*(?:SRID\s*=|POINT|LINESTRING|POLYGON|MULTI|GEOM)"

WIDE = pa.decimal128(20, 0)
TEXTS = (
    *("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json", "nchar", "nvarchar"),
    *("character", "varcharacter", "char varying", "character varying", "nchar varying", "nchar varchar", "national char"),
    *("national character", "national varchar", "national char varying", "national character varying", "long"),
    *("long varchar", "vector", "uuid", "inet4", "inet6", "xmltype", "clob", "varchar2"),
)
SHAPES = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
    "geometrycollection", "geomcollection",
)  # fmt: skip
BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "long varbinary", "raw")
LABELS = ("enum", "set")
DECIMALS = ("decimal", "numeric", "dec", "fixed", "number")
SIGNED: dict[str, pa.DataType] = {
    **dict.fromkeys(("tinyint", "int1"), pa.int16()),
    **dict.fromkeys(("smallint", "int2"), pa.int16()),
    **dict.fromkeys(("mediumint", "int3", "middleint"), pa.int32()),
    **dict.fromkeys(("int", "integer", "int4"), pa.int32()),
    **dict.fromkeys(("bigint", "int8"), pa.int64()),
}
UNSIGNED = SIGNED | {
    **dict.fromkeys(("smallint", "int2"), pa.int32()),
    **dict.fromkeys(("int", "integer", "int4"), pa.int64()),
    **dict.fromkeys(("bigint", "int8"), WIDE),
}
PLAIN: dict[str, pa.DataType] = {
    "serial": WIDE,
    **dict.fromkeys(("float", "float4"), pa.float32()),
    **dict.fromkeys(("double", "real", "double precision", "float8"), pa.float64()),
    **dict.fromkeys(("bool", "boolean"), pa.int16()),
    "date": pa.date32(),
    **dict.fromkeys(("datetime", "timestamp"), pa.timestamp("us")),
    "time": pa.time64("us"),
    "year": pa.int32(),
    **dict.fromkeys(TEXTS, pa.string()),
    **dict.fromkeys((*BYTES, *SHAPES), pa.binary()),
}


class MySqlType(NamedTuple):
    """The parts of a type: `enum`, `'a','b'`, `charset utf8mb4`. The name is in lower case with single spaces."""

    name: str
    inner: str = ""
    rest: str = ""


@lru_cache(MAX_KNOWN)
def parse_type(type_name: str) -> MySqlType:
    """The parts of a MySQL type. The name is empty if the text is not a type."""
    match = TYPE.match(type_name)
    if match is None:
        return MySqlType("")
    return MySqlType(" ".join(match["name"].lower().split()), match["inner"] or "", (match["rest"] or "").lower())


def to_arrow_type(type_name: str) -> pa.DataType | None:
    """The Arrow type of a MySQL type; None for an unknown type."""
    name, inner, rest = parse_type(type_name)
    if name in SIGNED:
        return (UNSIGNED if "unsigned" in rest or "zerofill" in rest else SIGNED)[name]
    if name == "bit":
        count = int(inner) if inner.isdigit() else 1
        number = pa.int64() if count < 64 else WIDE
        return pa.bool_() if count == 1 else number
    if name not in DECIMALS:
        return PLAIN.get(name)
    digits = [part.strip() for part in inner.split(",")]
    if digits == [""]:
        return pa.string()
    if len(digits) > 2 or not all(d.isascii() and d.isdigit() and len(d) < 4 for d in digits):
        return None
    return decimal_type(int(digits[0]), int(digits[1]) if len(digits) > 1 else 0) or pa.string()


def to_source_type(text: str) -> str:
    """`Column.source_type` of a column of this MySQL type."""
    name, inner, _ = parse_type(text)
    return VARIABLE_DECIMAL if name in DECIMALS and not inner.strip() else text.removesuffix(NUMBERED).removesuffix(LABELLED)


def find_mysql_reader(type_name: str, arrow: pa.DataType, *, declared: bool = False) -> TextReader | None:
    """The function that converts texts of a column to `arrow`; None if `text_values.find_text_reader` needs no addition.
    `declared`: `arrow` was declared and is not the result of `to_arrow_type`."""
    name, inner, rest = parse_type(type_name)
    is_text = pa.types.is_string(arrow)
    if name in LABELS and is_text:
        return partial(_to_labels, _Labels(name, _parse_labels(inner), rest))
    if name == "set" and arrow == pa.list_(pa.string()):
        return lambda texts: _split_sets(_to_labels(_Labels(name, _parse_labels(inner), rest), texts)).cast(arrow)
    if to_source_type(type_name) == VARIABLE_DECIMAL and is_text and not declared:
        return to_plain_numbers
    if name in SHAPES:
        return _geometry_texts if is_text else _geometry_bytes if pa.types.is_binary(arrow) else None
    return _to_utf8 if name in BYTES and is_text else None


def to_latin_bytes(texts: pa.Array) -> pa.Array:
    """Bytes from texts that have one ISO-8859-1 character per byte. Raises ValueMisfit for other characters."""
    try:
        return pa.array([None if text is None else text.encode("latin-1") for text in texts.to_pylist()], pa.binary())
    except UnicodeEncodeError:
        raise ValueMisfit(RejectCode.MALFORMED, "holds a character that stands for no byte (ISO-8859-1)") from None


def to_plain_numbers(texts: pa.Array) -> pa.Array:
    """Decimal numbers of any scale, with all digits and without an exponent."""
    if pc.all(pc.match_substring_regex(texts, PLAIN_NUMBER)).as_py() is not False:
        return texts
    numbers: list[str | None] = []
    for text in texts.to_pylist():
        if text is None:
            numbers.append(None)
            continue
        if len(text) > MAX_SCALE or not NUMBER.match(text):
            raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds something else than a finite decimal number")
        number = Decimal(text)
        if abs(number.adjusted()) > MAX_SCALE:
            raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds a decimal with more digits than any database's")
        numbers.append(format(number, "f"))
    return pa.array(numbers, pa.string())


class _Labels(NamedTuple):
    """The labels of an enum or set, in order, and the form of its values as far as the message names it."""

    name: str
    labels: Sequence[str]
    sent: str


def _parse_labels(inner: str) -> tuple[str, ...]:
    def plain(match: re.Match[str]) -> str:
        return "'" if match[1] is None else ESCAPES.get(match[1], match[1])

    return tuple([ESCAPED.sub(plain, label[1]) for label in LABEL.finditer(inner)])


def _to_labels(labels_of_type: _Labels, texts: pa.Array) -> pa.Array:
    """The labels of numeric values, as in MySQL's binlog; other values are labels already. Raises ValueMisfit for a value
    that may be either, and for a number without a known label."""
    if labels_of_type.sent.endswith(LABELLED):
        return texts
    digits = pc.match_substring_regex(texts, ORDINAL)
    if pc.any(digits).as_py() is not True:
        return texts
    labels: dict[str, str] = {}
    for text in pc.unique(texts.filter(pc.fill_null(digits, False))).to_pylist():
        labels[text] = _to_label(labels_of_type, text)
    return pa.array([labels.get(text, text) for text in texts.to_pylist()], pa.string())


def _to_label(of: _Labels, text: str) -> str:
    advice = f"write `schema: {{COLUMN: {'uint64' if of.name == 'set' else 'int32'}}}` for the table to keep its number"
    if not of.labels:
        reason = f"holds the number of a label, and its messages do not list the labels of the {of.name}"
        raise ValueMisfit(RejectCode.MALFORMED, f"{reason}: {advice}")
    number, label = int(text), None
    if of.name == "enum" and number <= len(of.labels):
        label = ("", *of.labels)[number]  # MySQL stores 0, the empty text, for invalid values.
    elif of.name == "set" and not number >> len(of.labels):
        label = ",".join([name for bit, name in enumerate(of.labels) if number >> bit & 1])
    if text in of.labels and not of.sent.endswith(NUMBERED) and label != text:
        reason = f"holds digits that are both a label of its {of.name} and the number of another one"
        raise ValueMisfit(RejectCode.MALFORMED, f"{reason}, and its message has no `sqlType` that says which: {advice}")
    if label is None:
        raise ValueMisfit(RejectCode.OUT_OF_RANGE, f"holds a number for which its {of.name} has no label: {advice}")
    return label


def _split_sets(texts: pa.Array) -> pa.Array:
    """The labels of sets; labels contain no comma."""
    return pa.array(
        [None if text is None else text.split(",") if text else [] for text in texts.to_pylist()], pa.list_(pa.string())
    )


def _to_utf8(texts: pa.Array) -> pa.Array:
    try:
        return to_latin_bytes(texts).cast(pa.string())
    except pa.ArrowInvalid:
        raise ValueMisfit(
            RejectCode.MALFORMED, "holds bytes that are no text: in `schema:` of the table it must be `binary`"
        ) from None


def _is_well_known_text(texts: pa.Array) -> pa.Array:
    return pc.match_substring_regex(texts, WELL_KNOWN_TEXT)


def _geometry_texts(texts: pa.Array) -> pa.Array:
    if pc.all(_is_well_known_text(texts)).as_py() is False:
        raise ValueMisfit(RejectCode.MALFORMED, "holds a geometry as bytes: in `schema:` of the table it must be `binary`")
    return texts


def _geometry_bytes(texts: pa.Array) -> pa.Array:
    if pc.any(_is_well_known_text(texts)).as_py() is True:
        raise ValueMisfit(
            RejectCode.MALFORMED, "holds a geometry as text (WKT): in `schema:` of the table it must be `string`"
        )
    return to_latin_bytes(texts)
