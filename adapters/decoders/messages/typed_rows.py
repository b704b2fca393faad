"""Rows of many messages as columns, read with a type that is generated for their layout, so that msgspec creates the
values.

The result equals that of `json_format.JsonMessageRows`, which reads value by value. Rows that do not fit the generated type
are left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from replicator.domain.out_of_range import ReadMode

from ...arrow.out_of_range_values import make_lenient
from ...arrow.record_errors import FAILURES, build_or_reject
from ...arrow.text_values import Read, find_text_reader
from ...arrow.value_readers import NULL, UNSET, StructObjectReader, ValueReader, cast_values, choose_objects, make_nullable
from ..json.type_names import find_type_reader, to_texts, type_name


class ColumnType(NamedTuple):
    """The type of a column: in its layout (`sent`), as wanted, and its name in messages, if any. `declared`: the type is
    from the configuration. `reading`: the treatment of values out of range."""

    sent: pa.DataType
    wanted: pa.DataType
    type_name: str = ""
    declared: bool = False
    reading: ReadMode = "reject"


ColumnTypes = Mapping[str, ColumnType]
ReaderOf = Callable[[ColumnType], Read]
"""Returns the function that converts texts of a column to the type `sent`. Raises TypeError if there is none."""


def text_column_reader(column: ColumnType) -> Read:
    """The reader of a column from its texts; lists are JSON arrays."""
    found = _list_reader(column.sent) if pa.types.is_list(column.sent) else find_text_reader(column.sent)
    if found is None:
        raise TypeError(f"no text is read as {column.sent}")
    return found


_values = msgspec.structs.astuple


def _list_reader(arrow: pa.DataType) -> Read:
    node: Any = find_type_reader(type_name(arrow))
    decode = msgspec.json.Decoder(node.wire).decode
    return lambda texts: node.build([None if text is None else decode(text) for text in texts.to_pylist()])


class ColumnValues(NamedTuple):
    """A column of some rows. Missing values (`unset`) and invalid values (`bad`) are null; both are listed by index."""

    array: pa.Array
    unset: Sequence[int] = ()
    bad: Sequence[int] = ()


class TypedColumn:
    """Reads the values of one column in three steps: msgspec's type (`wire`), numbers or text, wanted type."""

    def __init__(self, column: ColumnType, reader: ReaderOf, *, texts_only: bool) -> None:
        sent, self._wanted, *_ = column
        self._sent = sent
        as_text = texts_only or pa.types.is_string(sent) or pa.types.is_temporal(sent) or pa.types.is_binary(sent)
        self.wire: Any = str if as_text else int if pa.types.is_integer(sent) else msgspec.Raw
        self._read = make_lenient(ValueReader(sent, str, reader(column)), column.reading).build

    def to_column_values(self, values: Sequence[Any]) -> ColumnValues:
        """The values as numbers or text."""
        try:
            return ColumnValues(self._read_plain(values))
        except FAILURES:
            unset = [place for place, value in enumerate(values) if value is UNSET]
            array, bad = build_or_reject(self._read_plain, [None if value is UNSET else value for value in values], "")
            return ColumnValues(array, unset, list(bad))

    def to_wanted(self, plain: pa.Array) -> ColumnValues:
        """The values with the wanted type."""
        try:
            return ColumnValues(self._cast_wanted(plain))
        except FAILURES:
            array, bad = build_or_reject(lambda some: self._cast_wanted(pa.array(some, plain.type)), plain.to_pylist(), "")
            return ColumnValues(array, (), list(bad))

    def _read_plain(self, values: Sequence[Any]) -> pa.Array:
        if self.wire is msgspec.Raw:
            return to_texts([None if value == NULL else value for value in values])
        return pa.array(values, self._sent if self.wire is int else pa.string())

    def _cast_wanted(self, plain: pa.Array) -> pa.Array:
        built = plain if self.wire is int else self._read(plain)
        return built if self._sent == self._wanted else cast_values(built, self._wanted)


class TypedRows:
    """Reads rows of one layout. `row` and `old` are msgspec types of a row and of an old row, which has only the key."""

    def __init__(self, types: ColumnTypes, keys: Sequence[str], reader: ReaderOf, *, texts_only: bool) -> None:
        self.columns = {name: TypedColumn(column, reader, texts_only=texts_only) for name, column in types.items()}
        numbers = {name: number for number, name in enumerate(types)}
        self._keys = [numbers[key] for key in keys if key in numbers]
        self.row = _make_struct({name: column.wire for name, column in self.columns.items()})
        self.old = _make_struct({name: self.columns[name].wire for name in keys if name in self.columns})
        self._nothing = self.old()

    def values(self, rows: Sequence[Any]) -> Mapping[str, ColumnValues]:
        """The values of every column, as numbers or text."""
        columns: Sequence[Sequence[Any]] = list(zip(*map(_values, rows), strict=True)) if rows else [()] * len(self.columns)
        return {name: of.to_column_values(values) for (name, of), values in zip(self.columns.items(), columns, strict=True)}

    def read_key(self, row: Any) -> Any:
        """The key of a row as an `old` object; None for None."""
        if row is None:
            return None
        values = _values(row)
        return self.old(*[values[number] for number in self._keys])

    def find_key_changes(self, rows: Sequence[Any], olds: Sequence[Any]) -> list[int]:
        """Indices of rows whose key changed, by `olds`, in which None is a missing image."""
        some = [place for place, old in enumerate(olds) if old is not None and old != self._nothing]
        return [place for place in some if self._has_other_key(_values(olds[place]), _values(rows[place]))]

    def _has_other_key(self, old: Sequence[Any], row: Sequence[Any]) -> bool:
        return any(was is not UNSET and was != row[number] for was, number in zip(old, self._keys, strict=True))


def make_typed_rows(types: ColumnTypes, keys: Sequence[str], reader: ReaderOf, *, texts_only: bool) -> TypedRows | None:
    """The reader for rows of these columns; None if their names cannot be field names of a type."""
    if choose_objects(types) is not StructObjectReader or not types:
        return None
    return TypedRows(types, keys, reader, texts_only=texts_only)


def _make_struct(wires: Mapping[str, Any]) -> Any:
    fields = [
        (f"f{number}", make_nullable(wire), msgspec.field(default=UNSET, name=name))
        for number, (name, wire) in enumerate(wires.items())
    ]
    return msgspec.defstruct("Fields", fields, gc=False)
