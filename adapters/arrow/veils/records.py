"""Records as they may be stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from replicator.domain.errors import Reject

from ..json.faults import UNREADABLE, unreadable
from ..json.headers import without_values
from .marks import Header, Mark, marked, marks
from .masking import Masking, Opened
from .tables import Masks, PrivateTables

WITHHELD = b'{"withheld": "cannot be read, and may hold private values"}'


class Opens(Protocol):
    """Where records of a format have values."""

    def table_of(self, record: Record) -> str | None:
        """The table that a record is of which is not routed to one, as far as that can be told. Never fails."""
        ...

    def open(self, records: Sequence[Record]) -> Sequence[Opened | Reject]:
        """Records that were routed to tables, or why one of them cannot be read. Never fails."""
        ...

    def key(self, key: bytes, of: Opened) -> Opened | None:
        """The key of that record; None for one of which it is not known what it holds, which is not kept."""
        ...

    def ignored(self, record: Record) -> bytes | None:
        """The value of a record that is no change, as it may be stored. Raises one of `json.faults.UNREADABLE`."""
        ...


class OpensEach(Opens, Protocol):
    """`Opens` of records that are read one by one."""

    def open(self, records: Sequence[Record]) -> Sequence[Opened | Reject]:
        """See `Opens.open`."""
        return list(map(self._opened, records))

    def one(self, record: Record) -> Opened:
        """A record that was routed to a table. Raises one of `json.faults.UNREADABLE`."""
        ...

    def _opened(self, record: Record) -> Opened | Reject:
        try:
            return self.one(record)
        except UNREADABLE as error:
            return unreadable(error)


class Record(NamedTuple):
    """A raw record, how it was routed, and what it says of columns that are masked."""

    topic: str
    headers: list[Header] | None
    key: bytes | None
    value: bytes | None
    table: str | None
    ignored: str | None
    error: str | None
    mark: Mark | None

    @property
    def of(self) -> str:
        """The table that it is of, as far as it is known."""
        return self.table or (self.mark.table if self.mark else "")


class Stored(NamedTuple):
    """What is stored of a record."""

    headers: list[Header] | None
    key: bytes | None
    value: bytes | None


@dataclass
class Waiting:
    """A record whose values are not masked yet."""

    record: Record
    opened: Opened
    key: Opened | None
    mark: Mark

    def stored(self, error: Reject | None) -> Stored:
        """It, once they are."""
        headers = marked(self.record.headers, self.mark, error)
        return Stored(headers, self.key and self.key.close(), self.opened.close())


class Veils:
    """Writes records of a source anew, without private values. `route` is the decoder's."""

    def __init__(self, tables: PrivateTables, opens: Opens, route: Callable[[pa.Table], pa.Table]) -> None:
        self._tables, self._opens, self._route = tables, opens, route

    def veiled(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.KeepsPrivate.veiled`."""
        if not self._tables or not raw.num_rows:
            return raw
        masking, records = Masking(), self._records(raw)
        waiting = [self._waits(record) for record in records]
        opened = iter(self._opens.open([record for record, waits in zip(records, waiting, strict=True) if waits]))
        found = [
            self._opened(place, record, next(opened), masking) if waits else self._apart(record)
            for place, (record, waits) in enumerate(zip(records, waiting, strict=True))
        ]
        errors = masking.done()
        done = [one.stored(errors.get(i)) if isinstance(one, Waiting) else one for i, one in enumerate(found)]
        for name, values in zip(Stored._fields, zip(*done, strict=True), strict=True):
            at, kind = raw.column_names.index(name), raw.schema.field(name).type
            raw = raw.set_column(at, raw.schema.field(name), pa.chunked_array([pa.array(values, kind)]))
        return raw

    def _records(self, raw: pa.Table) -> list[Record]:
        routes = self._route(raw)
        headers = raw["headers"].combine_chunks()
        said = marks(headers)
        columns = [raw["topic"], headers, raw["key"], raw["value"], *(routes[n] for n in ("table", "ignored", "error"))]
        rows = zip(*(column.to_pylist() for column in columns), map(said.get, range(raw.num_rows)), strict=True)
        return [Record(*row) for row in rows]

    def _waits(self, record: Record) -> bool:
        """Whether it has columns that are to be masked."""
        return record.value is not None and bool(_left(self._tables.of(record.of), record.mark))

    def _opened(self, place: int, record: Record, opened: Opened | Reject, masking: Masking) -> Stored | Waiting:
        masks = self._tables.of(record.of)
        mark = Mark(record.of, tuple(sorted(masks)))
        if isinstance(opened, Reject):
            return _withheld(record)._replace(headers=marked(None, mark, opened))
        key = None if record.key is None else self._opens.key(record.key, opened)
        left = _left(masks, record.mark)
        masking.add(place, opened, left)
        if key is not None:
            masking.add(place, key, left)
        return Waiting(record, opened, key, mark)

    def _apart(self, record: Record) -> Stored:
        """A record without such columns, and one that is of no table as far as it was routed."""
        if record.of and record.value is not None:
            return Stored(record.headers, record.key, record.value)
        try:
            named = self._opens.table_of(record)
            if named is not None and self._tables.said_of(named) == {}:
                return Stored(record.headers, record.key, record.value)
            if record.ignored is None or record.value is None:
                return _withheld(record)
            return Stored(without_values(record.headers), record.key and WITHHELD, self._opens.ignored(record))
        except UNREADABLE:
            return _withheld(record)


def _left(masks: Masks, mark: Mark | None) -> Masks:
    """The masks of columns that are not masked yet."""
    return masks if mark is None else {name: mask for name, mask in masks.items() if name not in mark.columns}


def _withheld(record: Record) -> Stored:
    return Stored(None, record.key and WITHHELD, record.value and WITHHELD)
