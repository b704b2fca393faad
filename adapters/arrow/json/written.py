"""Rows as JSON objects that carry the types of their columns, so that every value survives exactly: see `spelling`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from .decimals import cast_digits
from .spelling import spelt

SPECIAL = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}

Plain = Callable[[Any], Any]


@dataclass(frozen=True)
class Layout:
    """The columns of rows, by the names that the source gives them."""

    schema: pa.Schema

    @cached_property
    def prefix(self) -> bytes:
        """What every record begins with."""
        types = msgspec.json.encode({field.name: spelt(field.type) for field in self.schema})
        return b'{"schema":' + types + b',"payload":'


def values(column: pa.ChunkedArray, arrow: pa.DataType) -> list[Any]:
    """A column as what JSON has: see `spelling`."""
    found: list[Any] = cast_digits(column, _ready(arrow)).to_pylist()
    if t.is_floating(arrow) and pc.all(pc.is_finite(column)).as_py() is not False:
        return found
    plain = _plain(arrow)
    return found if plain is None else [None if v is None else plain(v) for v in found]


def _ready(arrow: pa.DataType) -> pa.DataType:
    """`arrow` with text where JSON has no such values."""
    if t.is_decimal(arrow) or t.is_date(arrow) or t.is_timestamp(arrow) or t.is_time(arrow):
        return pa.string()
    if t.is_list(arrow):
        return pa.list_(_ready(arrow.value_type))
    if t.is_struct(arrow):
        return pa.struct([field.with_type(_ready(field.type)) for field in arrow])
    return pa.map_(_ready(arrow.key_type), _ready(arrow.item_type)) if t.is_map(arrow) else arrow


def _plain(arrow: pa.DataType) -> Plain | None:
    """What is left to do with a value that is not null, if anything."""
    if t.is_floating(arrow):
        return lambda value: SPECIAL.get(str(value), value)
    if t.is_list(arrow):
        inner = _plain(arrow.value_type)
        return inner and (lambda value: [_or_null(inner, one) for one in value])
    if t.is_struct(arrow):
        fields = {field.name: plain for field in arrow if (plain := _plain(field.type))}
        return (lambda value: {k: _or_null(fields.get(k), v) for k, v in value.items()}) if fields else None
    return _of_pairs(arrow) if t.is_map(arrow) else None


def _of_pairs(arrow: pa.MapType) -> Plain:
    keys, items = _plain(arrow.key_type), _plain(arrow.item_type)
    is_object = t.is_string(_ready(arrow.key_type)) and not t.is_decimal(arrow.key_type)

    def pairs(value: Any) -> Iterator[tuple[Any, Any]]:
        return ((_or_null(keys, k), _or_null(items, v)) for k, v in value)

    return lambda value: dict(pairs(value)) if is_object else list(pairs(value))


def _or_null(plain: Plain | None, value: Any) -> Any:
    return value if plain is None or value is None else plain(value)
