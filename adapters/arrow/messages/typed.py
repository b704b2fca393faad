"""Rows of many messages as columns: read by a type that is generated for their layout, so that msgspec makes the values.

What this reads is what `rows.JsonRows` reads value by value, and comes to the same; whatever does not fit the generated
type is left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from replicator.domain.out_of_range import Reading

from ..json.faults import FAILURES, fit
from ..json.nodes import Node, cast, nullable
from ..json.objects import NULL, UNSET, StructObjects, kind_for
from ..json.spelling import node_of, spelt
from ..out_of_range import lenient
from ..texts import Read, reader_of
from .written import texts_of


class ColumnType(NamedTuple):
    """The type of a column's values: in their layout, as they are wanted, and as their messages call it, if they do.
    `declared`: the layout has it from the configuration. `how`: what becomes of values that have no place."""

    sent: pa.DataType
    wanted: pa.DataType
    said: str = ""
    declared: bool = False
    how: Reading = "reject"


ColumnTypes = Mapping[str, ColumnType]
ReaderOf = Callable[[ColumnType], Read]
"""How texts of a column become values of the type `sent`. TypeError where none do."""


def read_texts(column: ColumnType) -> Read:
    """The reader of a column whose texts mean what they say; a list is a JSON array."""
    found = _lists(column.sent) if pa.types.is_list(column.sent) else reader_of(column.sent)
    if found is None:
        raise TypeError(f"no text is read as {column.sent}")
    return found


_values = msgspec.structs.astuple


def _lists(arrow: pa.DataType) -> Read:
    node: Any = node_of(spelt(arrow))
    decode = msgspec.json.Decoder(node.wire).decode
    return lambda texts: node.build([None if text is None else decode(text) for text in texts.to_pylist()])


class Values(NamedTuple):
    """A column of some rows: null where a row lacks it, which is in `unset`, and where its value does not fit: in `bad`."""

    array: pa.Array
    unset: Sequence[int] = ()
    bad: Sequence[int] = ()


class Column:
    """How values of one column are read: as msgspec makes them (`wire`), as numbers or text, then as they are wanted."""

    def __init__(self, column: ColumnType, reader: ReaderOf, *, texts_only: bool) -> None:
        sent, self._wanted, *_ = column
        self._sent = sent
        as_text = texts_only or pa.types.is_string(sent) or pa.types.is_temporal(sent) or pa.types.is_binary(sent)
        self.wire: Any = str if as_text else int if pa.types.is_integer(sent) else msgspec.Raw
        self._read = lenient(Node(sent, str, reader(column)), column.how).build

    def plain(self, values: Sequence[Any]) -> Values:
        """The values as numbers or text."""
        try:
            return Values(self._plain(values))
        except FAILURES:
            unset = [place for place, value in enumerate(values) if value is UNSET]
            array, bad = fit(self._plain, [None if value is UNSET else value for value in values], "")
            return Values(array, unset, list(bad))

    def wanted(self, plain: pa.Array) -> Values:
        """The values of a column as they are wanted."""
        try:
            return Values(self._as_wanted(plain))
        except FAILURES:
            array, bad = fit(lambda some: self._as_wanted(pa.array(some, plain.type)), plain.to_pylist(), "")
            return Values(array, (), list(bad))

    def _plain(self, values: Sequence[Any]) -> pa.Array:
        if self.wire is msgspec.Raw:
            return texts_of([None if value == NULL else value for value in values])
        return pa.array(values, self._sent if self.wire is int else pa.string())

    def _as_wanted(self, plain: pa.Array) -> pa.Array:
        built = plain if self.wire is int else self._read(plain)
        return built if self._sent == self._wanted else cast(built, self._wanted)


class TypedRows:
    """Reads rows of one layout. `row` and `old` are what msgspec is to make of a row, and of one before: its key only."""

    def __init__(self, types: ColumnTypes, keys: Sequence[str], reader: ReaderOf, *, texts_only: bool) -> None:
        self.columns = {name: Column(column, reader, texts_only=texts_only) for name, column in types.items()}
        numbers = {name: number for number, name in enumerate(types)}
        self._keys = [numbers[key] for key in keys if key in numbers]
        self.row = _struct({name: column.wire for name, column in self.columns.items()})
        self.old = _struct({name: self.columns[name].wire for name in keys if name in self.columns})
        self._nothing = self.old()

    def values(self, rows: Sequence[Any]) -> Mapping[str, Values]:
        """The values of every column, as numbers or text."""
        columns: Sequence[Sequence[Any]] = list(zip(*map(_values, rows), strict=True)) if rows else [()] * len(self.columns)
        return {name: of.plain(values) for (name, of), values in zip(self.columns.items(), columns, strict=True)}

    def key(self, row: Any) -> Any:
        """The key of a row as `old` has it; None of none."""
        if row is None:
            return None
        values = _values(row)
        return self.old(*[values[number] for number in self._keys])

    def moved(self, rows: Sequence[Any], olds: Sequence[Any]) -> list[int]:
        """Places of rows whose key was another one before, as far as `olds`, None where there is none, say."""
        some = [place for place, old in enumerate(olds) if old is not None and old != self._nothing]
        return [place for place in some if self._differ(_values(olds[place]), _values(rows[place]))]

    def _differ(self, old: Sequence[Any], row: Sequence[Any]) -> bool:
        return any(was is not UNSET and was != row[number] for was, number in zip(old, self._keys, strict=True))


def typed_rows(types: ColumnTypes, keys: Sequence[str], reader: ReaderOf, *, texts_only: bool) -> TypedRows | None:
    """What reads rows of these columns; None where their names cannot be those of a type."""
    if kind_for(types) is not StructObjects or not types:
        return None
    return TypedRows(types, keys, reader, texts_only=texts_only)


def _struct(wires: Mapping[str, Any]) -> Any:
    fields = [
        (f"f{number}", nullable(wire), msgspec.field(default=UNSET, name=name))
        for number, (name, wire) in enumerate(wires.items())
    ]
    return msgspec.defstruct("Fields", fields, gc=False)
