"""Random histories of one table, cut into batches, replayed and retried: from Hypothesis, or from a seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import Any, Literal

import pyarrow as pa
from hypothesis import strategies as st

from replicator.domain.change import (
    ERROR,
    KEY_CHANGE_DELETE,
    OFFSET,
    OLD_KEY,
    OP,
    PARTITION,
    TOPIC,
    TS,
    TX,
    UNCHANGED,
    changes_schema,
    sequence_columns,
)
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import TableSpec

from .model import Change
from .source import ACTS, FIRST_OFFSET, KEY_COUNT, KEY_TYPES, VALUE_TYPES, SourceEvent, SourceTable, Statement, StreamShape

Fault = Literal["", "before", "after"]


@dataclass(frozen=True)
class BatchDelivery:
    """One batch: the events [start, end) in the order of arrival.

    `start` is before the end of the last batch if events are delivered again. `fault`: its first attempt fails
    before anything was applied, or after everything was.
    """

    start: int
    end: int
    fault: Fault = ""


@dataclass(frozen=True)
class History:
    """A stream of one table, defined by statements at the source. Its `repr` is enough to build it again."""

    shape: StreamShape
    statements: tuple[Statement, ...]
    cuts: tuple[tuple[int, int, Fault], ...] = field(default=())
    """Per batch: the number of new events, of repeated events before them, and the fault."""

    @cached_property
    def source(self) -> SourceTable:
        """The source after all statements."""
        source = SourceTable(self.shape)
        for statement in self.statements:
            source.run(statement)
        return source

    @cached_property
    def events(self) -> tuple[SourceEvent, ...]:
        """All records in the order of arrival."""
        return tuple(self.source.list_arrivals())

    @cached_property
    def deliveries(self) -> tuple[BatchDelivery, ...]:
        """The batches of all events. The last one has the events after the cuts."""
        batches, done = [], 0
        for size, again, fault in self.cuts:
            batches.append(BatchDelivery(max(0, done - again), min(len(self.events), done + size), fault))
            done = batches[-1].end
        return (*batches, BatchDelivery(done, len(self.events)))

    def table(self, end: int | None = None) -> TableSpec:
        """The table with the newest schema of the events before `end` (default: all)."""
        return self.source.versions[max((e.version for e in self.events[:end]), default=0)]

    def changes(self, start: int = 0, end: int | None = None) -> list[Change]:
        """The changes among the events [start, end), for the model."""
        return [e.change for e in self.events[start:end] if e.change is not None]

    def runs(self, start: int, end: int) -> list[tuple[TableSpec, pa.Table]]:
        """The changes among the events [start, end) as from a decoder. They are changes frames in order of arrival, a
        new frame at each change of the schema."""
        runs: list[tuple[int, list[SourceEvent]]] = []
        for event in self.events[start:end]:
            if not runs or runs[-1][0] != event.version:
                runs.append((event.version, []))
            runs[-1][1].append(event)
        versions = self.source.versions
        return [(versions[v], self.frame(events, versions[v])) for v, events in runs]

    def frame(self, events: Iterable[SourceEvent], table: TableSpec) -> pa.Table:
        """The changes frame of some events under one schema of the table."""
        return changes_frame(((e, e.change) for e in events if e.change is not None), table, self.source.topic)

    def position(self, end: int) -> Position:
        """The position of a reader after the events before `end`."""
        offsets = {TopicPartition(self.source.topic, p): FIRST_OFFSET for p in range(self.shape.partitions)}
        read = {TopicPartition(self.source.topic, e.partition): e.offset + 1 for e in self.events[:end]}
        return Position(offsets | read)

    def span(self, start: int, end: int) -> Span:
        """The span of the events [start, end)."""
        return Span(self.position(start), self.position(end))


def list_events(changes: Iterable[Change], start: int = 0) -> list[tuple[SourceEvent, Change]]:
    """The changes as events of one partition, with offsets from `start` on."""
    return [(SourceEvent(0, offset, 0, None, change), change) for offset, change in enumerate(changes, start)]


def changes_frame(changes: Iterable[tuple[SourceEvent, Change]], table: TableSpec, topic: str) -> pa.Table:
    """The changes frame of `changes`, in their order."""
    rows: list[dict[str, Any]] = []
    for event, change in changes:
        doubtful = sorted(change.image.keys() - {*table.keys}) if change.doubtful else None
        rows.append(
            {
                OP: change.op,
                **dict(zip(sequence_columns(table.sequence), change.sequence, strict=True)),
                TS: change.ts,
                TOPIC: topic,
                PARTITION: event.partition,
                OFFSET: event.offset,
                TX: change.tx,
                ERROR: None,
                UNCHANGED: sorted(change.unsent) or doubtful,
                OLD_KEY: dict(zip(table.keys, change.moved_from, strict=True)) if change.moved_from else None,
                KEY_CHANGE_DELETE: True if change.moved_to else None,
                **change.image,
            }
        )
    return pa.Table.from_pylist(rows, changes_schema(table))


def make_random_history(
    seed: int,
    length: int = 60,
    *,
    toast: bool = False,
    keys: Sequence[str] = tuple(KEY_TYPES),
    disorder: int = 0,
    first: Sequence[str] = (),
) -> History:
    """The history of that seed. A shorter `length` gives the first of the same statements. `first`: see `histories`."""
    random = Random(seed)
    partitions = random.choice((1, 1, 1, 3))
    shape = StreamShape(
        key=random.choice(keys),
        values=tuple(random.choice(sorted(VALUE_TYPES)) for _ in range(random.randint(1, 4))),
        partitions=partitions,
        shuffle=random.choice((None, random.randrange(1000))) if partitions > 1 else None,
        blocks=random.random() < 0.5,
        tombstones=random.random() < 0.7,
        full=random.random() < 0.3,
        unseen=random.random() < 0.2,
        toast=toast,
        snapshot=random.choice((0, 0, 3)),
        disorder=disorder,
    )
    weights = [12, 3, 2, 4, 1, 1, 1, 1, 1, 1]
    statements = []
    for _ in range(length):
        mask = random.choice((0, random.randrange(16)))
        key_numbers = random.randrange(KEY_COUNT), random.randrange(KEY_COUNT)
        statements.append(Statement(random.choices(ACTS, weights)[0], *key_numbers, random.randrange(64), mask))
    random, count = Random(seed + 1), 1 + seed % 12
    faults: tuple[Fault, ...] = ("", "", "", "", "before", "after")
    cuts = []
    for _ in range(count):
        again = random.choice((0, 0, 0, random.randrange(1, 12)))
        cuts.append((random.randint(0, max(1, 2 * length // count)), again, random.choice(faults)))
    return History(_set_first_kind(shape, first, seed), tuple(statements), tuple(cuts))


def _set_first_kind(shape: StreamShape, kinds: Sequence[str], number: int) -> StreamShape:
    """The shape with a first value of one of these types, if any are given, and key changes with all values."""
    if not kinds:
        return shape
    return replace(shape, values=(kinds[number % len(kinds)], *shape.values), whole_moves=True)


@st.composite
def stream_shapes(
    draw: st.DrawFn, *, keys: Sequence[str] = tuple(KEY_TYPES), toast: bool = False, disorder: int = 0
) -> StreamShape:
    """Any shape, shrinking towards one partition, a plain key and two plain columns."""
    partitions = draw(st.sampled_from((1, 1, 3)))
    return StreamShape(
        key=draw(st.sampled_from(list(keys))),
        values=tuple(draw(st.lists(st.sampled_from(list(VALUE_TYPES)), min_size=1, max_size=4))),
        partitions=partitions,
        shuffle=draw(st.none() | st.integers(0, 999)) if partitions > 1 else None,
        blocks=draw(st.booleans()),
        tombstones=draw(st.booleans()),
        full=draw(st.booleans()),
        unseen=draw(st.sampled_from((False, False, False, True))),
        toast=toast,
        snapshot=draw(st.sampled_from((0, 0, 3))),
        disorder=disorder,
    )


def statements() -> st.SearchStrategy[Statement]:
    """One statement. Writes are the most likely."""
    acts = st.sampled_from(("write", "write", "write", "write", "move", "move", "delete", *ACTS))
    keys = st.integers(0, 1) | st.integers(0, KEY_COUNT - 1)
    return st.builds(Statement, acts, keys, keys, st.integers(0, 31), st.just(0) | st.integers(0, 15))


def batch_cuts() -> st.SearchStrategy[tuple[int, int, Fault]]:
    """One batch: its size, the number of repeated events, its fault."""
    again = st.just(0) | st.integers(0, 12)
    return st.tuples(st.integers(0, 20), again, st.sampled_from(("", "", "", "before", "after")))


def scrambled_histories(keys: tuple[str, ...]) -> st.SearchStrategy[History]:
    """Histories with records in any order."""

    def scramble(history: History, seed: int) -> History:
        return replace(history, shape=replace(history.shape, scramble=seed, shuffle=None))

    return st.builds(scramble, any_histories(keys), st.integers(0, 999))


def statement_end_histories(keys: tuple[str, ...]) -> st.SearchStrategy[History]:
    """Histories of a source that checks its keys at the end of a statement, and sends deletes with the whole row.

    In some of them the images of deletes are doubtful.
    """

    def looking(history: History, doubtful: bool) -> History:
        return replace(history, shape=replace(history.shape, at_once=True, full=True, doubtful=doubtful))

    return st.builds(looking, any_histories(keys), st.booleans())


def any_histories(keys: tuple[str, ...], disorder: int = 0, first: Sequence[str] = ()) -> st.SearchStrategy[History]:
    """Short histories that shrink well, and long ones for more cases."""
    numbers, lengths, more = (
        st.integers(0, 2**32),
        st.integers(0, 80),
        {"disorder": st.just(disorder), "first": st.just(first)},
    )
    seeded = st.builds(make_random_history, numbers, lengths, keys=st.just(keys), **more)
    return st.one_of(histories(keys=keys, disorder=disorder, first=first), seeded, seeded)


def histories(
    *,
    keys: Sequence[str] = tuple(KEY_TYPES),
    toast: bool = False,
    length: int = 40,
    disorder: int = 0,
    first: Sequence[str] = (),
) -> st.SearchStrategy[History]:
    """Histories of up to `length` statements, with their cuts.

    - `keys`: the allowed key types. `toast`: only values that Debezium can leave out are left out.
    - `disorder`: see `StreamShape`.
    - `first`: the allowed types of the first value, for lanes that read it. Key changes have all values then,
      because the changes of a key may be out of order.
    """
    several = st.lists(statements(), max_size=length).map(tuple)
    shape = st.builds(
        _set_first_kind, stream_shapes(keys=keys, toast=toast, disorder=disorder), st.just(first), st.integers(0, 99)
    )
    return st.builds(History, shape, several, st.lists(batch_cuts(), max_size=8).map(tuple))
