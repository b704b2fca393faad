"""Columns of arrays, maps and structs: elements are flattened, built as columns, and nested again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec
import pyarrow as pa

from ...arrow.json_objects import NULL, UNSET, choose_objects
from ...arrow.value_readers import ValueReader, make_element


def array_reader(items: ValueReader) -> ValueReader:
    """Reader of a JSON array as a list column; elements may be null."""
    arrow = pa.list_(items.type)

    def build(values: Sequence[Any]) -> pa.Array:
        flat = [x for v in values if v is not None for x in v]
        flat = [None if x == NULL else x for x in flat] if items.wire is msgspec.Raw else flat
        return pa.ListArray.from_arrays(_list_offsets(values), items.build(flat), type=arrow)

    one: Any = make_element(items.wire)
    return ValueReader(arrow, list[one], build, _placeholder_form("list", items))


def map_reader(keys: ValueReader, items: ValueReader) -> ValueReader:
    """Reader of a Connect map: an object if its keys are strings, otherwise an array of [key, value] pairs."""
    arrow = pa.map_(keys.type, items.type)
    as_object = keys.wire is str

    def build(values: Sequence[Any]) -> pa.Array:
        pairs = [p for v in values if v is not None for p in (v.items() if as_object else v)]
        flat_keys, flat_items = keys.build([k for k, _ in pairs]), items.build([x for _, x in pairs])
        return pa.MapArray.from_arrays(_list_offsets(values), flat_keys, flat_items, type=arrow)

    one: Any = make_element(items.wire)
    key: Any = keys.wire
    wire: Any = dict[str, one] if as_object else list[tuple[key, one]]
    return ValueReader(arrow, wire, build, _placeholder_form("map", items) if as_object else "")


def struct_reader(fields: dict[str, ValueReader]) -> ValueReader:
    """Reader of a JSON object as a struct column; missing fields are null."""
    reader = choose_objects(fields)(fields)
    arrow = pa.struct([(name, node.type) for name, node in fields.items()])

    def build(values: Sequence[Any]) -> pa.Array:
        empty = reader.empty()
        full = [empty if v is None else v for v in values]
        columns = []
        for name, node in reader.nodes.items():
            field = [None if v is UNSET else v for v in reader.values(full, name)]
            columns.append(node.build(field))
        nulls = pa.array([v is None for v in values], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=list(arrow), mask=nulls)

    return ValueReader(arrow, reader.wire, build)


def _placeholder_form(of: str, items: ValueReader) -> str:
    """The form of the placeholder for a missing value in a collection, from its form in the elements."""
    if items.wire is msgspec.Raw:
        return f"{of}:raw"
    if items.placeholder in ("text", "bytes"):
        return f"{of}:{items.placeholder}"
    return f"{of}:int" if pa.types.is_integer(items.type) else ""


def _list_offsets(values: Sequence[Any]) -> pa.Array:
    """Offsets of a list array; a null offset marks a null list."""
    lengths = [0 if v is None else len(v) for v in values]
    ends = [0, *accumulate(lengths)]
    starts = [None if v is None else start for v, start in zip(values, ends, strict=False)]
    return pa.array([*starts, ends[-1]], pa.int32())
