"""The promises of a sink for watermarks; part of `sink_contract.SinkContract`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from replicator.domain.change import ERROR, OFFSET
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.policy.plan import Counts
from replicator.domain.policy.policies import plan_for
from replicator.domain.policy.watermark import MICROSECOND
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Lane, Write
from replicator.ports.sink import Sink

from .contract import require
from .delivery import make_lane, make_watermark_plans, to_canonical_rows
from .histories import any_histories, changes_frame
from .model import Change, fold_changes
from .sink_base import IDENTITY, make_history
from .sink_positions import SinkPositions
from .source import SourceEvent
from .value_types import EPOCH

GRACE = timedelta(milliseconds=60)
DISORDER = 150
"""Milliseconds. Two events of a history are about eight apart."""

TOPIC = "cdc.public.items"
HISTORY = make_history()
ArrivingChange = tuple[str, int, int | None]
"""Operation, partition, event time in seconds."""


def make_arrivals(*changes: ArrivingChange) -> list[tuple[SourceEvent, Change]]:
    """Changes of different keys, in this order."""
    ends: Counter[int] = Counter()
    out = []
    for number, (op, partition, seconds) in enumerate(changes):
        offset, ends[partition] = ends[partition], ends[partition] + 1
        ts, event_id = None if seconds is None else make_time(seconds), f"{TOPIC}-{partition}-{offset}"
        change = Change(op, (number + 1, 0, 0), {"k1": number, "v1": op}, ts=ts, event_id=event_id, partition=partition)
        out.append((SourceEvent(partition, offset, 0, (number,), change), change))
    return out


def make_resent(partition: int, offset: int, *again: tuple[SourceEvent, Change]) -> list[tuple[SourceEvent, Change]]:
    """The changes again, in that partition from that offset on."""
    out = []
    for place, (event, change) in enumerate(again, offset):
        moved = replace(change, event_id=f"{TOPIC}-{partition}-{place}", partition=partition)
        out.append((replace(event, partition=partition, offset=place, change=moved), moved))
    return out


def make_time(seconds: int) -> datetime:
    """That time."""
    return EPOCH + timedelta(days=20_000, seconds=seconds)


def find_position(changes: Iterable[tuple[SourceEvent, Change]]) -> Position:
    """The position of a reader of both partitions after these changes."""
    read = {TopicPartition(TOPIC, event.partition): event.offset + 1 for event, _ in changes}
    return Position({TopicPartition(TOPIC, 0): 0, TopicPartition(TOPIC, 1): 0} | read)


FIRST_CHANGES = make_arrivals(
    *(("c", 0, 100), ("u", 0, 90), ("u", 0, 89), ("c", 1, 50), ("r", 0, 500), ("r", 0, 1), ("u", 0, None)),
    *(("u", 1, 45), ("u", 1, 39), ("t", 0, 200), ("u", 0, 189), ("u", 0, 190), ("d", 1, 40)),
)
STREAM = [*FIRST_CHANGES, *make_resent(1, 4, FIRST_CHANGES[10], FIRST_CHANGES[11])]
"""For a grace of ten seconds.

- A change exactly at the watermark is not late. Each partition has its own watermark.
- Snapshot reads and changes without a time are never late, and make nothing late.
- The last two changes are repeated in another partition. One was late and is not late there; the other is a
  duplicate.
"""

LATE = [2, 8, 10]


class SinkWatermarks(SinkPositions):
    """Watermarks."""

    def test_histories_under_a_watermark_equal_the_model(self) -> None:
        """Random histories with disordered event times end like the model, with any batches, repetitions and
        faults. Lateness does not depend on them."""
        require(self.features().watermarks, "the sink does not know watermarks")
        self.check_model(
            any_histories(("int", "text", "composite", "none"), DISORDER), "append", make_watermark_plans(GRACE)
        )

    def test_late_changes_are_rejected(self) -> None:
        """A change that is late for earlier changes, of its batch or another, is rejected as LATE, with both times.
        The state has the newest time of each partition. A repeated delivery does not make changes late."""
        require(self.features().watermarks, "the sink does not know watermarks")
        lane = make_lane("append", watermark=timedelta(seconds=10))
        with self.target() as target:
            sink, counts = target.open(), Counts()
            rejects: list[dict[str, Any]] = []
            for start, end in ((0, 6), (4, 8), (6, 15)):
                done, bad = self._apply_changes(sink, lane, start, end)
                counts, rejects = counts + done, rejects + bad
            state = sink.state(lane)
            sink.close()
            rejects.sort(key=self._find_number)
            assert [self._find_number(row) for row in rejects] == LATE
            assert (counts.rejected, counts.applied) == (3, 11)
            assert [self._get_code(row) for row in rejects] == [RejectCode.LATE] * 3
            assert "2024-10-04 00:01:29 UTC" in rejects[0][ERROR] and "2024-10-04 00:01:30 UTC" in rejects[0][ERROR]
            assert f"lanes resync {lane.id}" in rejects[0][ERROR]
            wanted, _ = fold_changes("append", ("k1", "v1"), ("k1",), (c for _, c in STREAM), lane.watermark)
            names = ("k1", "_event_id")
            assert to_canonical_rows(target.rows(lane), names) == to_canonical_rows(wanted, names)
            assert state is not None
            reached = {place.partition: EPOCH + micros * MICROSECOND for place, micros in state.max_event_time.items()}
            assert reached == {0: make_time(200), 1: make_time(190)}

    def test_a_watermark_may_change(self) -> None:
        """Another grace applies from the next change on, with the known times. Without a watermark no times are
        stored, so a new watermark starts empty. Neither change counts as another rule of the lane."""
        require(self.features().watermarks, "the sink does not know watermarks")
        lane = make_lane("append", watermark=timedelta(seconds=10))
        wide, none = (replace(lane, watermark=grace) for grace in (timedelta(seconds=11), None))
        with self.target() as target:
            sink = target.open()
            assert self._apply_changes(sink, wide, 0, 3)[0].rejected == 0
            assert self._apply_changes(sink, lane, 3, 9)[0].rejected == 1
            assert self._apply_changes(sink, none, 9, 10)[0].rejected == 0
            state = sink.state(lane)
            assert state is not None
            assert not state.max_event_time
            assert self._apply_changes(sink, lane, 10, 13)[0].rejected == 0
            sink.close()
            assert len(target.rows(lane)) == 12

    def _apply_changes(self, sink: Sink[Any], lane: Lane, start: int, end: int) -> tuple[Counts, list[dict[str, Any]]]:
        """Apply the changes [start, end) of `STREAM`; returns their counts and the rejects."""
        table = replace(HISTORY.table(), columns=HISTORY.table().columns[:2])
        plan, engine = plan_for(lane.policy, table, lane.watermark), self.new_engine()
        folded = engine.fold(self.to_frame(changes_frame(STREAM[start:end], table, TOPIC)), plan)
        span = Span(find_position(STREAM[:start]), find_position(STREAM[:end]))
        rejects: list[dict[str, Any]] = []
        sink.prepare(lane, plan)
        write = Write(lane, plan, folded, span, IDENTITY)
        applied = sink.apply([write], lambda _, rows: rejects.extend(self.to_arrow(rows).to_pylist()))
        return folded.counts + applied[lane.id].counts, rejects

    def _find_number(self, row: dict[str, Any]) -> int:
        places = [(event.partition, event.offset) for event, _ in STREAM]
        return places.index((row["_partition"], row[OFFSET]))

    def _get_code(self, row: dict[str, Any]) -> str:
        return Reject.parse(row[ERROR]).code
