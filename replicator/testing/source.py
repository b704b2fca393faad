"""A source database with one table: runs statements and emits a well-ordered change stream.

The changes of a key are in the order of their sequences. The statements and the shape decide everything, so the
same input always gives the same stream."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from random import Random
from typing import Any, Literal

import pyarrow as pa

from replicator.domain.table import Column, TableSpec

from .model import Change, Key

Act = Literal["write", "delete", "replace", "move", "swap", "chain", "truncate", "skip", "add_column", "resend"]
ACTS: tuple[Act, ...] = ("write", "delete", "replace", "move", "swap", "chain", "truncate", "skip", "add_column", "resend")
KEY_COUNT = 5
"""Keys are numbered from 0. The number after the last is free for the middle of a swap."""

FIRST_OFFSET = 10


@dataclass(frozen=True)
class Statement:
    """A statement at the source. If it makes no sense in the current state of the table, it is a plain write.

    `key`, `other`: numbers of keys. `salt` decides the values. The bits of `mask` name the columns that the event
    does not send. Acts:

    - write: insert, or update of an existing row. delete, truncate, add_column: as named.
    - replace: delete and insert in one transaction.
    - move: key change. swap: two rows exchange their keys. chain: two key changes in one transaction.
    - skip: an offset without a record.
    - resend: the last `1 + salt % 16` records of the log again, at new offsets. A connector that resumes in a
      transaction counts its changes from the start.
    """

    act: Act
    key: int = 0
    other: int = 1
    salt: int = 0
    mask: int = 0


@dataclass(frozen=True)
class StreamShape:
    """The properties of the table and its stream.

    - `key`: a name of `KEY_TYPES`. `values`: names of `VALUE_TYPES`.
    - `partitions`: the number of partitions. The key of a record decides its partition.
    - `shuffle`: partitions arrive interleaved at random. Key changes have all values then, because their halves may
      arrive in either order.
    - `blocks`: events have their order in the transaction. Events of a table without a key always have it.
    - `tombstones`: a null record follows each delete. `full`: deletes have the whole row.
    - `unseen`: rows existed before the stream, so the first change of a key may be a partial update.
    - `toast`: only values of variable length are left out. `snapshot`: the number of rows read at the start.
    - `disorder`: event times deviate from log order by up to this number of milliseconds, and some events have none.
    - `whole_moves`: key changes have all values.
    - `scramble`: records arrive in any order, also those of one key. Every value is sent then, unless `parts`.
    - `at_once`: the source checks its keys at the end of a statement. So rows can exchange or rotate keys without
      another key. A row may get a key before the event by which its last owner leaves it.
    - `doubtful`: images of rows that leave their key may be incomplete, and some images are incomplete.
    """

    key: str = "int"
    values: tuple[str, ...] = ("text", "int")
    partitions: int = 1
    shuffle: int | None = None
    blocks: bool = False
    tombstones: bool = True
    full: bool = False
    unseen: bool = False
    toast: bool = False
    snapshot: int = 0
    disorder: int = 0
    whole_moves: bool = False
    scramble: int | None = None
    parts: bool = False
    at_once: bool = False
    doubtful: bool = False

    @property
    def keeps_order(self) -> bool:
        """True if records arrive in log order."""
        return self.shuffle is None and self.scramble is None


@dataclass(frozen=True)
class SourceEvent:
    """One record.

    `change`: None for a null record. `key`: None for a truncate and for a table without a key. `version`: the
    number of its schema. `moved_to`: the new key on the delete half of a key change.
    """

    partition: int
    offset: int
    version: int
    key: Key | None
    change: Change | None
    moved_to: Key | None = None


class SourceTable:
    """The table, its log, and the connector that reads it. `events` and `versions`: the records and schemas so far."""

    topic = "cdc.public.items"

    def __init__(self, shape: StreamShape) -> None:
        self.shape = shape
        keys = tuple(Column(f"k{i}", VALUE_TYPES[kind].type) for i, kind in enumerate(KEY_TYPES[shape.key], 1))
        values = tuple(Column(f"v{i}", VALUE_TYPES[kind].type) for i, kind in enumerate(shape.values, 1))
        names = tuple(column.name for column in keys)
        self.versions = [TableSpec("public.items", keys + values, names, 3, "0", counted=not names, by_commit=True)]
        self.kinds = dict(zip((c.name for c in values), shape.values, strict=True))
        self.live: dict[int, dict[str, Any]] = {}
        self.unseen = set(range(KEY_COUNT if shape.unseen else 0))
        self.log: list[SourceEvent] = []
        self.events: list[SourceEvent] = []
        self.next_offset = dict.fromkeys(range(shape.partitions), FIRST_OFFSET)
        self.lsn, self.committed, self.order = 1_000, 0, 0
        for number in range(min(shape.snapshot, KEY_COUNT)):
            self.live[number] = self.make_values(number)
            self.emit("r", number, self.live[number])
        self.commit()

    def run(self, statement: Statement) -> None:
        """Run one statement in its own transaction."""
        acts: Mapping[Act, Callable[[Statement], None]] = {
            "delete": self.delete,
            "replace": self.replace,
            "move": self.move,
            "swap": self.swap,
            "chain": self.chain,
            "truncate": self.truncate,
            "skip": self.skip,
            "add_column": self.add_column,
            "resend": self.resend,
        }
        self.order = statement.salt % 3
        statement = statement if self.shape.scramble is None or self.shape.parts else replace(statement, mask=0)
        acts.get(statement.act, self.write)(statement)
        self.commit()

    def commit(self) -> None:
        """End of the transaction."""
        self.lsn += 8
        self.committed, self.order = self.lsn, 0

    def write(self, s: Statement) -> None:
        """Insert, or update of an existing row."""
        exists = s.key in self.live
        unseen = s.mask and s.key in self.unseen and not exists
        unchanged = self.choose_unchanged(s.mask) if exists or unseen else frozenset()
        old = {name: value for name, value in self.live.get(s.key, {}).items() if name in unchanged}
        self.live[s.key] = self.make_values(s.salt) | old
        self.lsn += 8
        self.emit("u" if exists or unseen else "c", s.key, self.live[s.key], unsent=unchanged)

    def delete(self, s: Statement) -> None:
        """Delete of a row; a write if the row does not exist."""
        if s.key not in self.live:
            return self.write(s)
        self.lsn += 8
        return self.remove(s.key)

    def remove(self, number: int, new: int | None = None) -> None:
        """A delete, or the delete half of a key change. In a `doubtful` shape some images are filled in."""
        row = self.live.pop(number)
        filled_in = self.shape.doubtful and new is not None and self.lsn % 16 == 0
        self.emit_leaving(number, self.make_values(0) if filled_in else row, new)

    def emit_leaving(self, number: int, image: Mapping[str, Any], new: int | None) -> None:
        """The records of `remove`."""
        whole = self.shape.full or not self.versions[0].keys
        moved_to = None if new is None else self.make_key(new)
        self.emit("d", number, image if whole else {}, moved_to=moved_to)
        if self.shape.tombstones:
            self.add_event(
                SourceEvent(self.find_partition(number), 0, self.version, self.make_key(number) or None, None, moved_to)
            )

    def replace(self, s: Statement) -> None:
        """Delete and insert of one key in one transaction."""
        self.delete(s)
        self.write(replace(s, salt=s.salt + 1, mask=0))

    def move(self, s: Statement) -> None:
        """Key change. A write if the new key is used, or in a table without a key."""
        if self.shape.at_once and s.other in self.live:
            return self.move_keys(s, (s.key, s.other, self.find_free_key(s.key)))
        free = s.other not in self.live and s.other != s.key and self.versions[0].keys
        if not free or not (s.key in self.live or s.key in self.unseen):
            return self.write(s)
        whole = self.shape.whole_moves or not self.shape.keeps_order
        unchanged = frozenset() if whole else self.choose_unchanged(s.mask)
        old = self.live.setdefault(s.key, self.make_values(s.salt + 1))
        self.lsn += 8
        self.remove(s.key, s.other)
        self.live[s.other] = self.make_values(s.salt) | {name: v for name, v in old.items() if name in unchanged}
        return self.emit("c", s.other, self.live[s.other], unsent=unchanged, moved_from=self.make_key(s.key))

    def swap(self, s: Statement) -> None:
        """Two rows exchange their keys through a third key."""
        if self.shape.at_once and s.salt % 2:
            self.move_keys(s, (s.key, s.other, s.key))
            return
        for key, other in ((s.key, KEY_COUNT), (s.other, s.key), (KEY_COUNT, s.other)):
            if key in self.live and other not in self.live:
                self.move(replace(s, key=key, other=other, salt=s.salt + key))

    def chain(self, s: Statement) -> None:
        """A to B and B to C in one transaction."""
        if self.shape.at_once and s.salt % 2:
            third = (s.other + 1 + s.salt % 3) % KEY_COUNT
            self.move_keys(s, (s.key, s.other, third, s.key))
            return
        self.move(s)
        self.move(replace(s, key=s.other, other=(s.other + 1 + s.salt % 3) % KEY_COUNT, mask=s.mask >> 1))

    def move_keys(self, s: Statement, path: tuple[int, ...]) -> None:
        """One statement in which each row gets the next key of `path`, in this order.

        A write if the path does not fit the rows, or if rows are too similar to show which of two left a key.
        """
        moves = list(pairwise(path))
        if len({old for old, _ in moves}) < len(moves) or any(old not in self.live for old, _ in moves):
            return self.write(s)
        before = {old: self.live[old] for old, _ in moves}
        after = {new: self.make_values(s.salt + old) if s.mask & 1 else dict(before[old]) for old, new in moves}
        if any(not any(v is not None for v in before[k].values()) or after[k] == before[k] for k in after if k in before):
            return self.write(s)
        for old, new in moves:
            self.lsn += 8
            self.emit_leaving(old, before[old], new)
            self.emit("c", new, after[new], moved_from=self.make_key(old))
        self.live = {k: row for k, row in self.live.items() if k not in before} | after
        return None

    def find_free_key(self, key: int) -> int:
        """A key without a row. If all are used, `key`, which its row leaves."""
        return next((number for number in range(KEY_COUNT + 1) if number not in self.live), key)

    def truncate(self, _: Statement) -> None:
        """Remove all rows, in one event."""
        self.live.clear()
        self.unseen.clear()
        self.lsn += 8
        self.add_event(SourceEvent(0, 0, self.version, None, Change("t", self.make_sequence(), {}, ts=self.make_time())))

    def skip(self, s: Statement) -> None:
        """An offset without a record: a transaction marker, or a compacted record."""
        self.next_offset[s.salt % self.shape.partitions] += 1

    def add_column(self, s: Statement) -> None:
        """Add a nullable column."""
        kind = sorted(VALUE_TYPES)[s.salt % len(VALUE_TYPES)]
        name = f"v{len(self.kinds) + 1}"
        self.kinds[name] = kind
        last = self.versions[-1]
        columns = (*last.columns, Column(name, VALUE_TYPES[kind].type))
        self.versions.append(replace(last, columns=columns, fingerprint=str(len(self.versions))))
        for row in self.live.values():
            row[name] = None

    def resend(self, s: Statement) -> None:
        """The connector was killed, and restarts from an older log position."""
        again = self.log[-1 - s.salt % 16 :]
        for event in again:
            self.place_event(self.recount(event, again[0]))

    def recount(self, event: SourceEvent, first: SourceEvent) -> SourceEvent:
        """The event from a connector that resumes with `first`.

        With several partitions, a repeated change with another count looks like a new change, so it keeps its
        count.
        """
        one, other = event.change, first.change
        if one is None or other is None or not one.counted or one.sequence[0] != other.sequence[0]:
            return event
        order = one.sequence[2] - max(0, other.sequence[2] - 1)
        return replace(event, change=replace(one, sequence=(*one.sequence[:2], order)))

    def make_values(self, salt: int) -> dict[str, Any]:
        """Values for a row, some of them NULL."""
        numbered = enumerate(self.kinds.items())
        return {name: None if (salt + i) % 7 == 6 else VALUE_TYPES[kind].get_value(salt + i) for i, (name, kind) in numbered}

    def choose_unchanged(self, mask: int) -> frozenset[str]:
        """The columns whose bits are set in `mask`."""
        able = [name for name, kind in self.kinds.items() if kind in TOAST or not self.shape.toast]
        return frozenset(name for i, name in enumerate(able) if mask >> i & 1)

    def make_key(self, number: int) -> Key:
        """The key column values of a key number."""
        return tuple(VALUE_TYPES[kind].get_value(number + i) for i, kind in enumerate(KEY_TYPES[self.shape.key]))

    def find_partition(self, number: int) -> int:
        """The partition of a key; in a table without a key, of a row."""
        return zlib.crc32(repr(self.make_key(number) or number).encode()) % self.shape.partitions

    @property
    def version(self) -> int:
        """The number of the newest schema."""
        return len(self.versions) - 1

    def make_time(self) -> Any:
        """The event time at the source."""
        chance = zlib.crc32(f"{self.lsn} {self.order}".encode()) if self.shape.disorder else 0
        deviation = chance // 8 % (self.shape.disorder + 1)
        return None if chance % 8 == 1 else EPOCH + timedelta(days=20_000, milliseconds=self.lsn - deviation)

    def make_sequence(self, order: int = 0) -> tuple[int, ...]:
        """The sequence, as a decoder computes it from the log position of the event."""
        return (self.committed or self.lsn, self.lsn, order)

    def emit(
        self,
        op: str,
        number: int,
        row: Mapping[str, Any],
        *,
        unsent: frozenset[str] = frozenset(),
        moved_from: Key | None = None,
        moved_to: Key | None = None,
    ) -> None:
        """Emit the event of one row, without the unchanged values."""
        self.order += 1
        self.unseen.discard(number)
        key = self.make_key(number)
        sent = {name: value for name, value in row.items() if name not in unsent}
        image = dict(zip(self.versions[0].keys, key, strict=True)) | sent
        sequence = self.make_sequence() if key else self.make_sequence(self.order)
        counted = not key and self.shape.partitions == 1
        change = Change(op, sequence, image, unsent, moved_from, moved_to is not None, self.make_time(), counted=counted)
        if self.shape.doubtful and moved_to is not None and any(value is not None for value in sent.values()):
            change = replace(change, doubtful=True)
        self.add_event(SourceEvent(self.find_partition(number), 0, self.version, key or None, change, moved_to))

    def add_event(self, event: SourceEvent) -> None:
        """Add a new event to the log and the stream."""
        self.log.append(event)
        self.place_event(event)

    def place_event(self, event: SourceEvent) -> None:
        """Add the event at the end of its partition."""
        offset = self.next_offset[event.partition]
        self.next_offset[event.partition] = offset + 1
        event_id = f"{self.topic}-{event.partition}-{offset}"
        change = event.change and replace(event.change, event_id=event_id, partition=event.partition)
        self.events.append(replace(event, offset=offset, change=change))

    def list_arrivals(self) -> list[SourceEvent]:
        """The events in the order of a consumer: per partition by offset."""
        if self.shape.scramble is not None:
            return self.scramble_events(self.shape.scramble)
        if self.shape.shuffle is None:
            return list(self.events)
        queues = [[e for e in self.events if e.partition == p] for p in range(self.shape.partitions)]
        order = [e.partition for e in self.events]
        Random(self.shape.shuffle).shuffle(order)
        heads = [iter(queue) for queue in queues]
        return [next(heads[p]) for p in order]

    def scramble_events(self, seed: int) -> list[SourceEvent]:
        """The events in any order, with offsets in that order."""
        events = list(self.events)
        Random(seed).shuffle(events)
        next_offset = dict.fromkeys(range(self.shape.partitions), FIRST_OFFSET)
        out = []
        for event in events:
            offset = next_offset[event.partition]
            next_offset[event.partition] = offset + 1
            event_id = f"{self.topic}-{event.partition}-{offset}"
            change = event.change and replace(event.change, event_id=event_id)
            out.append(replace(event, offset=offset, change=change))
        return out


# The value types of random histories: an Arrow type, useful values, and their form in Debezium.

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class ValueType:
    """A value type. `values`: by number, the first is the plainest. `schema`: the Kafka Connect schema of a field.
    `encode`: the form of a value in the JSON converter."""

    type: pa.DataType
    values: tuple[Any, ...]
    schema: Mapping[str, Any]
    encode: Callable[[Any], Any] = field(default=lambda value: value)

    def get_value(self, salt: int) -> Any:
        """The value of that number. Numbers after the last start again."""
        return self.values[salt % len(self.values)]


def to_micros(value: datetime) -> int:
    """Microseconds since 1970."""
    return (value - EPOCH) // timedelta(microseconds=1)


def encode_decimal(value: Decimal) -> str:
    """Base64 of the big-endian two's complement of the unscaled value: Connect's Decimal."""
    number = int(value.scaleb(2))
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


def encode_instant(value: datetime) -> str:
    """The form of `io.debezium.time.ZonedTimestamp`."""
    return value.strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"


def encode_number(value: float) -> float | str:
    """A double in the JSON converter: values outside JSON are text."""
    return value if abs(value) < float("inf") else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]


VALUE_TYPES: dict[str, ValueType] = {
    "int": ValueType(pa.int64(), (0, 1, -1, 2**53 + 1, -(2**63), 2**63 - 1), {"type": "int64"}),
    "small": ValueType(pa.int32(), (0, 7, -7, 2**31 - 1, -(2**31)), {"type": "int32"}),
    "text": ValueType(
        pa.string(),
        ("a", "", "it's", 'say "no"; --', "back\\slash\ttab\nline", "é漢🎉", "NULL", "\\N", "{a,b}", "__unset__"),
        {"type": "string"},
    ),
    "truth": ValueType(pa.bool_(), (True, False), {"type": "boolean"}),
    "double": ValueType(
        pa.float64(),
        (0.5, -0.1, 1e300, 5e-324, float("inf"), float("-inf"), float("nan")),
        {"type": "double"},
        encode_number,
    ),
    "money": ValueType(
        pa.decimal128(12, 2),
        tuple(Decimal(text) for text in ("0.01", "0.00", "-0.01", "9999999999.99", "-9999999999.99")),
        {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "version": 1,
            "parameters": {"scale": "2", "connect.decimal.precision": "12"},
        },
        encode_decimal,
    ),
    "day": ValueType(
        pa.date32(),
        (date(2024, 2, 29), date(1970, 1, 1), date(1815, 12, 10), date(9999, 12, 31)),
        {"type": "int32", "name": "io.debezium.time.Date", "version": 1},
        lambda value: (value - EPOCH.date()).days,
    ),
    "instant": ValueType(
        pa.timestamp("us", "UTC"),
        tuple(datetime(y, 1, 2, 3, 4, 5, us, UTC) for y, us in ((2024, 0), (1969, 999_999), (1900, 1), (9999, 123_456))),
        {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1},
        encode_instant,
    ),
    "bytes": ValueType(
        pa.binary(),
        (b"\x00\xff", b"", b"'\\", b"__debezium"),
        {"type": "bytes"},
        lambda value: base64.b64encode(value).decode(),
    ),
}
"""By the name of a column's type in a history."""

KEY_TYPES: dict[str, tuple[str, ...]] = {"int": ("int",), "text": ("text",), "composite": ("small", "text"), "none": ()}
"""The types of the key columns, by the name of a key."""

TOAST = {"text": "__debezium_unavailable_value", "bytes": base64.b64encode(b"__debezium_unavailable_value").decode()}
"""Debezium's placeholder of an unchanged value. Only values of variable length can have it."""
