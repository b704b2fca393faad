"""Columns that the configuration declares, for events that carry no schema.

A value may be JSON text, a number or a truth value, whatever the declared type, as in the formats of `messages`. An array
or object in a column of text is its JSON text. A number in a column of dates or times counts the unit of the declared type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import ConfigProblem, RejectCode

from ..json import decimals, nested, nodes, temporal
from ..json.faults import Unfit
from ..json.nodes import Node
from ..messages.written import texts_of
from ..texts import reader_of

UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""How many of them a second has."""
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SCALARS: Mapping[str, pa.DataType] = {
    **{name: pa.type_for_alias(name) for name in INTEGERS},
    **{"int": pa.int32(), "bigint": pa.int64(), "bool": pa.bool_(), "boolean": pa.bool_()},
    **{"float": pa.float32(), "float32": pa.float32(), "double": pa.float64(), "float64": pa.float64()},
}
DECIMAL = re.compile(r"decimal(?:128|256)?\((\d+)(?:,(-?\d+))?\)\Z")
LIST = re.compile(r"list<(?:item:|element:)?(.+)>\Z")
BASE64 = r"\A(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})\z"
NUMBER = rf"\A{decimals.NUMBER.pattern}".replace(r"\Z", r"\z")
PRECISE = "`decimals: base64` if the connector has decimal.handling.mode=precise, its default"
DIGITS = "`decimals: text` if it has decimal.handling.mode=string"
AMBIGUOUS = f"holds text that may be a number, and Base64 as well; write at the source {PRECISE}, or {DIGITS}"
NOT_DIGITS = f"holds Base64, and the source says `decimals: text`; write there {PRECISE}"
NOT_BASE64 = f"holds text that is not Base64, and the source says `decimals: base64`; write there {DIGITS}"
NO_NUMBER = r"(?i)\A(?:infinity|nan)\z"
VARIABLE = r'\A\s*\{\s*"scale"\s*:'
"""How an `io.debezium.data.VariableScaleDecimal` begins, and what Connect writes in that order."""

MASKED = "replicator.masked"
"""Names the type of a column whose values were masked before: what else stands there than text was rejected."""

Decimals = Literal["text", "base64"] | None
"""What a decimal in JSON text is; where nothing says so, it must be clear from the text."""


class VariableScale(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The object of an `io.debezium.data.VariableScaleDecimal`."""

    scale: int
    value: bytes


_variable = msgspec.json.Decoder(VariableScale).decode


def node_named(table: str, column: str, name: str, *, decimals_are: Decimals) -> Node:
    """How the values of a declared column are decoded.

    Raises ConfigProblem for a name that is no Arrow type, or one that this format does not send.
    """
    wanted = re.sub(r"\s*([,<>()\[\]:=])\s*", r"\1", name.strip().lower()).replace(",utc", ", utc").replace(",tz", ", tz")
    if inner := LIST.match(wanted):
        return nested.array(node_named(table, column, inner[1], decimals_are=decimals_are))
    if wanted in SCALARS:
        return _of_text(SCALARS[wanted])
    if wanted in OTHERS:
        return OTHERS[wanted]()
    found = DECIMAL.match(wanted)
    arrow = decimals.decimal_type(int(found[1]), int(found[2] or 0)) if found and int(found[1]) else None
    if found is None or arrow is None:
        raise ConfigProblem(
            f"column {column!r} of table {table} is declared as {name!r}, which is no type this format can read",
            next_step="Use an Arrow type name such as int64, string, double, bool, binary, date32, time64[us], "
            "timestamp[ms], timestamp[us], timestamp[us, UTC], decimal(10,2) or list<string>.",
        )
    return Node(arrow, msgspec.Raw, partial(_decimals, arrow, int(found[2] or 0), decimals_are), "raw")


def nodes_of(table: str, columns: Mapping[str, str], *, decimals_are: Decimals) -> dict[str, Node]:
    """How each declared column is decoded."""
    return {name: node_named(table, name, said, decimals_are=decimals_are) for name, said in columns.items()}


def refuse_types(declared: Mapping[str, Mapping[str, str]]) -> None:
    """Raise ConfigProblem that names every declared column whose type cannot be read."""
    found: list[ConfigProblem] = []
    for table, columns in declared.items():
        for name, said in columns.items():
            try:
                node_named(table, name, said, decimals_are=None)
            except ConfigProblem as problem:
                found.append(problem)
    if found:
        raise ConfigProblem("; ".join(problem.sentence for problem in found), next_step=found[0].next_step)


def _of_text(arrow: pa.DataType) -> Node:
    """Values that are read from their text, whatever their JSON type."""
    read = reader_of(arrow)
    if read is None:
        raise TypeError(f"no text is read as {arrow}")
    return Node(arrow, msgspec.Raw, lambda values: read(texts_of(values)), "raw" if pa.types.is_floating(arrow) else "")


def _strings() -> Node:
    """Text as it is, numbers and truth values as JSON writes them, arrays and objects as their JSON text."""

    def build(values: Sequence[Any]) -> pa.Array:
        texts = texts_of(values)
        return _with_variable(texts, values)

    return Node(pa.string(), msgspec.Raw, build, "text")


def _with_variable(texts: pa.Array, values: Sequence[Any]) -> pa.Array:
    """The texts, with that of the number in place of each VariableScaleDecimal."""
    known = pc.fill_null(pc.match_substring_regex(texts, VARIABLE), False)
    if not pc.any(known).as_py():
        return texts
    numbers = [_variable_text(values[place]) for place in pc.indices_nonzero(known).to_pylist()]
    found = pc.replace_with_mask(texts, known, pa.array(numbers, pa.string()))
    return pc.coalesce(found, texts)


def _variable_text(value: msgspec.Raw) -> str | None:
    """None for what only begins like a VariableScaleDecimal."""
    try:
        said = _variable(value)
    except msgspec.MsgspecError:
        return None
    return decimals.plain_text(decimals.unscaled(said.value), said.scale)


def _decimals(arrow: pa.DataType, scale: int, decimals_are: Decimals, values: Sequence[Any]) -> pa.Array:
    """JSON numbers, VariableScaleDecimals, numbers in text, and Base64 of the unscaled value. Text that may be a number and
    Base64 is refused unless `decimals_are` tells."""
    texts = _with_variable(texts_of(values), values)
    in_text = pa.array([value is not None and bytes(value).startswith(b'"') for value in values], pa.bool_())
    coded = pc.and_(in_text, pc.fill_null(_is_base64(texts), False))
    is_number = pc.fill_null(pc.match_substring_regex(texts, NUMBER), False)
    if decimals_are == "text":
        _refuse(pc.and_not(coded, is_number), NOT_DIGITS)
        coded = pa.repeat(pa.scalar(False), len(texts))
    elif decimals_are == "base64":
        _refuse(pc.and_not(in_text, coded), NOT_BASE64)
    else:
        _refuse(pc.and_(coded, is_number), AMBIGUOUS)
    if not pc.any(coded).as_py():
        return decimals.from_text(texts, arrow)
    chosen = zip(coded.to_pylist(), texts.to_pylist(), strict=True)
    numbers = [_unscaled(text) * 10 ** max(0, -scale) if is_coded else None for is_coded, text in chosen]
    others = decimals.from_text(pc.if_else(coded, pa.scalar(None, pa.string()), texts), arrow)
    return pc.if_else(coded, decimals.from_unscaled(numbers, arrow), others)


def _is_base64(texts: pa.Array) -> pa.Array:
    return pc.and_not(pc.match_substring_regex(texts, BASE64), pc.match_substring_regex(texts, NO_NUMBER))


def _unscaled(text: str) -> int:
    return decimals.unscaled(msgspec.json.decode(f'"{text}"', type=bytes))


def _refuse(places: pa.Array, sentence: str) -> None:
    if pc.any(places).as_py():
        raise Unfit(RejectCode.MALFORMED, sentence)


def _moments(arrow: pa.DataType, counted: Node | None, units: str = "") -> Node:
    """Dates and times: text in ISO 8601, and numbers where `counted` reads them; otherwise the type has none of `units`."""
    read = reader_of(arrow)
    if read is None:
        raise TypeError(f"no text is read as {arrow}")

    def build(values: Sequence[Any]) -> pa.Array:
        numbers = [None if value is None or bytes(value).startswith(b'"') else bytes(value) for value in values]
        if numbers.count(None) == len(numbers):
            return read(_without_zulu(texts_of(values), arrow)).cast(arrow)
        if counted is None:
            raise Unfit(
                RejectCode.MALFORMED, f"holds a number, and its declared type names no unit; declare {units}, as it is sent"
            )
        found = counted.build([None if number is None else int(number) for number in numbers])
        texts = [value if number is None else None for value, number in zip(values, numbers, strict=True)]
        return found if texts.count(None) == len(texts) else pc.coalesce(found, build(texts))

    return Node(arrow, msgspec.Raw, build, "raw", counted.beyond if counted is not None else None)


def _without_zulu(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    """Under `time.precision.mode=isostring` the connector writes a Z behind dates and times that have no zone."""
    return texts if pa.types.is_timestamp(arrow) and arrow.tz else pc.replace_substring_regex(texts, "Z$", "")


def _stamps(unit: str, arrow: pa.DataType) -> Callable[[], Node]:
    return lambda: _moments(arrow, temporal.timestamp(UNITS[unit], arrow))


def _times(unit: str) -> Callable[[], Node]:
    def make() -> Node:
        counted = temporal.time(UNITS[unit])
        return _moments(counted.type, counted)

    return make


OTHERS: Mapping[str, Callable[[], Node]] = {
    **dict.fromkeys(("string", "utf8"), _strings),
    MASKED: nodes.text,
    "binary": nodes.binary,
    **dict.fromkeys(("date", "date32", "date32[day]"), lambda: _moments(pa.date32(), temporal.date())),
    "time": lambda: _moments(pa.time64("us"), None, "time32[ms], time64[us] or time64[ns]"),
    **{f"time{32 if unit in ('s', 'ms') else 64}[{unit}]": _times(unit) for unit in UNITS},
    "timestamp": lambda: _moments(temporal.LOCAL_US, None, "timestamp[ms], timestamp[us] or timestamp[ns]"),
    **{f"timestamp[{unit}]": _stamps(unit, temporal.LOCAL_US) for unit in ("s", "ms", "us")},
    "timestamp[ns]": _stamps("ns", temporal.LOCAL_NS),
    "timestamptz": lambda: _moments(temporal.UTC_US, None, "timestamp[ms, UTC] or timestamp[us, UTC]"),
    **{f"timestamp[{unit}, utc]": _stamps(unit, temporal.UTC_US) for unit in ("s", "ms", "us")},
    **{f"timestamp[{unit}, tz=utc]": _stamps(unit, temporal.UTC_US) for unit in ("s", "ms", "us")},
}
"""The unit of a time is the unit that the event uses: `timestamp[ms]` reads milliseconds, and becomes microseconds."""
