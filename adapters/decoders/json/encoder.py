"""Rows as JSON objects with the types of their columns, so that every value survives exactly: see `type_names`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from ...arrow.decimals import cast_digits
from .type_names import type_name

SPECIAL = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}

Plain = Callable[[Any], Any]


@dataclass(frozen=True)
class TypedRowLayout:
    """The columns of rows, with their names in the source."""

    schema: pa.Schema

    @cached_property
    def prefix(self) -> bytes:
        """The bytes at the start of every record."""
        types = msgspec.json.encode({field.name: type_name(field.type) for field in self.schema})
        return b'{"schema":' + types + b',"payload":'


def to_json_values(column: pa.ChunkedArray, arrow: pa.DataType) -> list[Any]:
    """The values of a column in JSON form: see `type_names`."""
    found: list[Any] = cast_digits(column, _json_ready_type(arrow)).to_pylist()
    if t.is_floating(arrow) and pc.all(pc.is_finite(column)).as_py() is not False:
        return found
    plain = _find_converter(arrow)
    return found if plain is None else [None if v is None else plain(v) for v in found]


def _json_ready_type(arrow: pa.DataType) -> pa.DataType:
    """`arrow` with string for values that JSON does not have."""
    if t.is_decimal(arrow) or t.is_date(arrow) or t.is_timestamp(arrow) or t.is_time(arrow):
        return pa.string()
    if t.is_list(arrow):
        return pa.list_(_json_ready_type(arrow.value_type))
    if t.is_struct(arrow):
        return pa.struct([field.with_type(_json_ready_type(field.type)) for field in arrow])
    return pa.map_(_json_ready_type(arrow.key_type), _json_ready_type(arrow.item_type)) if t.is_map(arrow) else arrow


def _find_converter(arrow: pa.DataType) -> Plain | None:
    """The remaining conversion of values that are not null, if any."""
    if t.is_floating(arrow):
        return lambda value: SPECIAL.get(str(value), value)
    if t.is_list(arrow):
        inner = _find_converter(arrow.value_type)
        return inner and (lambda value: [_convert_or_null(inner, one) for one in value])
    if t.is_struct(arrow):
        fields = {field.name: plain for field in arrow if (plain := _find_converter(field.type))}
        return (lambda value: {k: _convert_or_null(fields.get(k), v) for k, v in value.items()}) if fields else None
    return _pairs_converter(arrow) if t.is_map(arrow) else None


def _pairs_converter(arrow: pa.MapType) -> Plain:
    keys, items = _find_converter(arrow.key_type), _find_converter(arrow.item_type)
    is_object = t.is_string(_json_ready_type(arrow.key_type)) and not t.is_decimal(arrow.key_type)

    def pairs(value: Any) -> Iterator[tuple[Any, Any]]:
        return ((_convert_or_null(keys, k), _convert_or_null(items, v)) for k, v in value)

    return lambda value: dict(pairs(value)) if is_object else list(pairs(value))


def _convert_or_null(plain: Plain | None, value: Any) -> Any:
    return value if plain is None or value is None else plain(value)
