"""Example outbox events, and their writes through an engine into a sink that is the event store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from replicator.domain.change import OFFSET, OP, PARTITION, TOPIC, TS, Op, changes_schema, sequence_columns
from replicator.domain.events import Event
from replicator.domain.policy.plan import ApplyPlan
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.ports.engine import Engine
from replicator.ports.frames import Lane, Write

FIRST_TIME = datetime(2024, 2, 29, 12, tzinfo=UTC)
COLUMN_NAMES = ("id", "aggregatetype", "aggregateid", "type", "payload")
TABLE = TableSpec(
    "outbox.event.order",
    (*(Column(name, pa.string()) for name in COLUMN_NAMES), Column("event_offset", pa.int64())),
    ("id",),
    1,
)
PLAN: ApplyPlan = plan_for("append", TABLE)
IDENTITY = {"shop.public.outbox": "topic-id-1"}


@dataclass(frozen=True, slots=True)
class SentEvent:
    """An event of an outbox, by default with the id `sent-<number>`. `minutes`: its time after `FIRST_TIME`."""

    number: int
    of: str | None = "A1"
    kind: str | None = "order"
    type: str | None = "Placed"
    payload: str | None = '{"total": 1.10, "names": ["\u00e9", null], "none": null, "who": "me"}'
    event_id: str = ""
    minutes: int | None = None

    @property
    def id(self) -> str:
        """The id of the event."""
        return self.event_id or f"sent-{self.number}"

    def make_row(self, place: TopicPartition, offset: int) -> Mapping[str, Any]:
        """The change of the event, at this position."""
        values = dict(zip(COLUMN_NAMES, (self.id, self.kind, self.of, self.type, self.payload), strict=True))
        at = None if self.minutes is None else FIRST_TIME + timedelta(minutes=self.minutes)
        return {
            **values,
            "event_offset": offset,
            OP: Op.CREATE.value,
            sequence_columns(1)[0]: 0,
            TS: at,
            TOPIC: place.topic,
            PARTITION: place.partition,
            OFFSET: offset,
        }


@dataclass(frozen=True)
class OutboxRecords:
    """The records of one lane, by partition. `to_frame`: makes a frame of the engine."""

    records: Mapping[int, Sequence[SentEvent]]
    into: str = "order"
    to_frame: Callable[[pa.Table], Any] = lambda table: table

    @property
    def lane(self) -> Lane:
        """The lane that reads the records."""
        return Lane(f"event_store.{self.into}", "testing", "shop", TABLE.name, "event_store", self.into, "append")

    def get_partition(self, partition: int) -> TopicPartition:
        """The partition of that number."""
        return TopicPartition(f"shop.public.outbox.{self.into}", partition)

    def make_write(
        self, engine: Engine[Any], start: Mapping[int, int] | int, end: Mapping[int, int] | int, *, out_of_band: bool = False
    ) -> Write[Any]:
        """The records of these offsets as a write. A single number means the first partition. `out_of_band`:
        outside the stream."""
        first, last = _to_partitions(start), _to_partitions(end)
        # Partitions may arrive in any order.
        rows = [
            sent.make_row(self.get_partition(number), offset)
            for number in sorted(last, reverse=True)
            for offset, sent in enumerate(self.records.get(number, ()))
            if first.get(number, 0) <= offset < last[number]
        ]
        folded = engine.fold(self.make_frame(rows), PLAN)
        if out_of_band:
            return Write(self.lane, PLAN, folded, Span(Position(), Position()), out_of_band=True)
        span = Span(self._make_position(first), self._make_position(last))
        return Write(self.lane, PLAN, folded, span, IDENTITY)

    def make_frame(self, rows: Iterable[Mapping[str, Any]]) -> Any:
        """Changes as a frame of the engine. Missing values are null."""
        schema = changes_schema(TABLE)
        table = pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema)
        return self.to_frame(table)

    def _make_position(self, offsets: Mapping[int, int]) -> Position:
        return Position({self.get_partition(number): offset for number, offset in offsets.items()})


def _to_partitions(said: Mapping[int, int] | int) -> Mapping[int, int]:
    return {0: said} if isinstance(said, int) else said


def refuse_gaps(events: Sequence[Event]) -> None:
    """AssertionError unless each aggregate has the versions 1, 2, 3 and so on, with times that never go back, and
    ids are unique."""
    by: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        by.setdefault(event.aggregate, []).append(event)
    for of_one in by.values():
        inorder = sorted(of_one, key=lambda e: e.event_version)
        assert [e.event_version for e in inorder] == list(range(1, len(inorder) + 1)), inorder
        assert [e.created_at for e in inorder] == sorted(e.created_at for e in inorder), inorder
    ids = [event.event_id for event in events]
    assert len(set(ids)) == len(ids), ids
