"""What every sink promises about watermarks; a part of `sink_contract.SinkContract`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from replicator.domain.change import ERROR, OFFSET
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.plan import Counts
from replicator.domain.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.watermark import MICROSECOND
from replicator.ports.frames import Lane, Write
from replicator.ports.sink import Sink

from .contract import needs
from .delivery import canonical_rows, lane_of, under
from .histories import any_history, changes_frame
from .kinds import EPOCH
from .model import Change, fold
from .sink_base import IDENTITY, simple
from .sink_positions import SinkPositions
from .source import Event

GRACE = timedelta(milliseconds=60)
DISORDER = 150
"""Milliseconds; two events of a history are some eight apart."""

TOPIC = "cdc.public.items"
HISTORY = simple()
Arriving = tuple[str, int, int | None]
"""Operation, partition, event time in seconds."""


def arrived(*changes: Arriving) -> list[tuple[Event, Change]]:
    """Changes of as many keys, in this order."""
    ends: Counter[int] = Counter()
    out = []
    for number, (op, partition, seconds) in enumerate(changes):
        offset, ends[partition] = ends[partition], ends[partition] + 1
        ts, event_id = None if seconds is None else at(seconds), f"{TOPIC}-{partition}-{offset}"
        change = Change(op, (number + 1, 0, 0), {"k1": number, "v1": op}, ts=ts, event_id=event_id, partition=partition)
        out.append((Event(partition, offset, 0, (number,), change), change))
    return out


def resent(partition: int, offset: int, *again: tuple[Event, Change]) -> list[tuple[Event, Change]]:
    """Changes once more, in that partition from that offset on."""
    out = []
    for place, (event, change) in enumerate(again, offset):
        moved = replace(change, event_id=f"{TOPIC}-{partition}-{place}", partition=partition)
        out.append((replace(event, partition=partition, offset=place, change=moved), moved))
    return out


def at(seconds: int) -> datetime:
    """That moment."""
    return EPOCH + timedelta(days=20_000, seconds=seconds)


def after(changes: Iterable[tuple[Event, Change]]) -> Position:
    """Where a reader of these stands that knows two partitions."""
    read = {TopicPartition(TOPIC, event.partition): event.offset + 1 for event, _ in changes}
    return Position({TopicPartition(TOPIC, 0): 0, TopicPartition(TOPIC, 1): 0} | read)


ONCE = arrived(
    *(("c", 0, 100), ("u", 0, 90), ("u", 0, 89), ("c", 1, 50), ("r", 0, 500), ("r", 0, 1), ("u", 0, None)),
    *(("u", 1, 45), ("u", 1, 39), ("t", 0, 200), ("u", 0, 189), ("u", 0, 190), ("d", 1, 40)),
)
STREAM = [*ONCE, *resent(1, 4, ONCE[10], ONCE[11])]
"""With a grace of ten seconds: on the watermark is not late; another partition has its own; what snapshots read, and what
has no time, is never late and makes nothing late. At the end two changes come once more in another partition, where the one
that was late is not, and the other is there already."""

LATE = [2, 8, 10]


class SinkWatermarks(SinkPositions):
    """Watermarks."""

    def test_histories_under_a_watermark_equal_the_model(self) -> None:
        """Random histories whose event times are out of order end as the model says, under every cut, repetition and fault:
        what is late does not depend on them."""
        needs(self.capabilities().watermarks, "the sink does not know watermarks")
        self.equal_the_model(any_history(("int", "text", "composite", "none"), DISORDER), "append", under(GRACE))

    def test_late_changes_are_rejected(self) -> None:
        """What is late for what came before it, in its batch or in another, is rejected as LATE, with both times; the state
        says how far each partition has got. What is delivered again is not late for it."""
        needs(self.capabilities().watermarks, "the sink does not know watermarks")
        lane = lane_of("append", watermark=timedelta(seconds=10))
        with self.target() as target:
            sink, counts = target.open(), Counts()
            rejects: list[dict[str, Any]] = []
            for start, end in ((0, 6), (4, 8), (6, 15)):
                done, bad = self._take(sink, lane, start, end)
                counts, rejects = counts + done, rejects + bad
            state = sink.state(lane)
            sink.close()
            rejects.sort(key=self._number)
            assert [self._number(row) for row in rejects] == LATE
            assert (counts.rejected, counts.applied) == (3, 11)
            assert [self._error(row) for row in rejects] == [RejectCode.LATE] * 3
            assert "2024-10-04 00:01:29 UTC" in rejects[0][ERROR] and "2024-10-04 00:01:30 UTC" in rejects[0][ERROR]
            assert f"lanes resync {lane.id}" in rejects[0][ERROR]
            wanted, _ = fold("append", ("k1", "v1"), ("k1",), (c for _, c in STREAM), lane.watermark)
            names = ("k1", "_event_id")
            assert canonical_rows(target.rows(lane), names) == canonical_rows(wanted, names)
            assert state is not None
            reached = {place.partition: EPOCH + micros * MICROSECOND for place, micros in state.reached.items()}
            assert reached == {0: at(200), 1: at(190)}

    def test_a_watermark_may_change(self) -> None:
        """Another grace holds from the next change on, for what was known; without one nothing is kept, so that one which is
        added begins with nothing known. Neither is another rule."""
        needs(self.capabilities().watermarks, "the sink does not know watermarks")
        lane = lane_of("append", watermark=timedelta(seconds=10))
        wide, none = (replace(lane, watermark=grace) for grace in (timedelta(seconds=11), None))
        with self.target() as target:
            sink = target.open()
            assert self._take(sink, wide, 0, 3)[0].rejected == 0
            assert self._take(sink, lane, 3, 9)[0].rejected == 1
            assert self._take(sink, none, 9, 10)[0].rejected == 0
            state = sink.state(lane)
            assert state is not None
            assert not state.reached
            assert self._take(sink, lane, 10, 13)[0].rejected == 0
            sink.close()
            assert len(target.rows(lane)) == 12

    def _take(self, sink: Sink[Any], lane: Lane, start: int, end: int) -> tuple[Counts, list[dict[str, Any]]]:
        """Apply the changes [start, end) of `STREAM`; their counts, and the rejects."""
        table = replace(HISTORY.table(), columns=HISTORY.table().columns[:2])
        plan, engine = plan_for(lane.policy, table, lane.watermark), self.new_engine()
        folded = engine.fold(self.to_frame(changes_frame(STREAM[start:end], table, TOPIC)), plan)
        span = Span(after(STREAM[:start]), after(STREAM[:end]))
        rejects: list[dict[str, Any]] = []
        sink.prepare(lane, plan)
        write = Write(lane, plan, folded, span, IDENTITY)
        applied = sink.apply([write], lambda _, rows: rejects.extend(self.to_arrow(rows).to_pylist()))
        return folded.counts + applied[lane.id].counts, rejects

    def _number(self, row: dict[str, Any]) -> int:
        places = [(event.partition, event.offset) for event, _ in STREAM]
        return places.index((row["_partition"], row[OFFSET]))

    def _error(self, row: dict[str, Any]) -> str:
        return Reject.parse(row[ERROR]).code
