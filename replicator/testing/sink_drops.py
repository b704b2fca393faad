"""The promises of a sink that can drop lanes (`ports.sink.Drops`); part of `sink_contract.SinkContract`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from replicator.domain.errors import Fenced, ReplicatorError
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.ports.frames import Write
from replicator.ports.sink import Drops, Sink

from .contract import require
from .delivery import make_lane
from .histories import changes_frame
from .model import Change
from .sink_base import IDENTITY, SinkBase, make_history, make_writes, refuse_rejects
from .source import SourceEvent, Statement

DELETE_HISTORY = make_history(*make_writes(0, 1), Statement("delete", 0), *make_writes(1, salt=5))
"""The first key has a tombstone."""
KEYED_TABLE = TableSpec("public.items", (Column("k1", pa.int64()), Column("v1", pa.string())), ("k1",), 3)


class SinkDrops(SinkBase):
    """The promises of `Drops`, for sinks that implement it."""

    def require_drops(self, sink: Sink[Any]) -> Any:
        """The sink as a `Drops`. Skips the running test if it is none."""
        require(hasattr(sink, "drop"), "the sink drops no lanes")
        found: Drops = sink  # type: ignore[assignment]
        return found

    def test_drop_leaves_nothing(self) -> None:
        """No state and no metadata: the same changes apply as in a new lane, also under another policy."""
        with self.target() as target:
            sink = self.require_drops(target.open())
            whole = self.write(DELETE_HISTORY, 0, 4)
            self.apply_write(sink, whole)
            assert "table" in {one.what for one in sink.list_artifacts(whole.lane)}
            assert not [one for one in sink.list_artifacts(whole.lane) if one.stays]
            sink.drop(whole.lane)
            assert not sink.list_artifacts(whole.lane) and sink.state(whole.lane) is None
            self.apply_write(sink, self.write(DELETE_HISTORY, 0, 2))
            self.assert_holds(target, DELETE_HISTORY, whole, 2)
            for policy in sorted(sink.capabilities.policies - {"scd1", "event_log"}):
                sink.drop(whole.lane)
                other = self.write(DELETE_HISTORY, 0, 4, make_lane(policy))
                self.apply_write(sink, other)
                self.assert_holds(target, DELETE_HISTORY, other)
            sink.close()

    def test_drop_removes_tombstones(self) -> None:
        """An old tombstone does not reject an older row after the drop."""
        with self.target() as target:
            sink, lane = self.require_drops(target.open()), make_lane("scd1")
            self._put_changes(sink, ("c", 0, 1), ("d", 0, 9))
            sink.drop(lane)
            self._put_changes(sink, ("c", 5, 2), ("d", 5, 8))
            self._put_changes(sink, ("c", 0, 3), start=2)
            assert [row["k1"] for row in target.rows(lane)] == [0]
            sink.close()

    def _put_changes(self, sink: Sink[Any], *changes: tuple[str, int, int], start: int = 0) -> None:
        """Apply changes (operation, key, sequence) from that offset on."""
        topic, plan, engine = DELETE_HISTORY.source.topic, plan_for("scd1", KEYED_TABLE), self.new_engine()
        frame = [
            (SourceEvent(0, offset, 0, (key,), None), Change(op, (sequence, 0, 0), {"k1": key, "v1": op}))
            for offset, (op, key, sequence) in enumerate(changes, start)
        ]
        folded = engine.fold(self.to_frame(changes_frame(frame, KEYED_TABLE, topic)), plan)
        first, end = (Position({TopicPartition(topic, 0): offset}) for offset in (start, start + len(changes)))
        self.apply_write(sink, Write(make_lane("scd1"), plan, folded, Span(first, end), IDENTITY))

    def test_drop_may_be_repeated(self) -> None:
        """A second drop, and a drop of an unknown lane, do nothing. `list_artifacts` does nothing either."""
        with self.target() as target:
            sink = self.require_drops(target.open())
            write = self.write(DELETE_HISTORY, 0, 4)
            assert not sink.list_artifacts(write.lane)
            sink.drop(write.lane)
            self.apply_write(sink, write)
            for _ in range(2):
                sink.drop(write.lane)
                assert not sink.list_artifacts(write.lane) and sink.state(write.lane) is None
            self.apply_write(sink, write)
            self.assert_holds(target, DELETE_HISTORY, write)
            sink.close()

    def test_drop_leaves_other_lanes(self) -> None:
        """Rows, state and tombstones of another lane stay, and it continues."""
        lanes = [make_lane("scd1"), make_lane("scd1", "other")]
        with self.target() as target:
            sink = self.require_drops(target.open())
            for lane in lanes:
                self.apply_write(sink, self.write(DELETE_HISTORY, 0, 3, lane))
            before = sink.state(lanes[1]), sink.list_artifacts(lanes[1])
            sink.drop(lanes[0])
            assert (sink.state(lanes[1]), sink.list_artifacts(lanes[1])) == before
            rest = self.write(DELETE_HISTORY, 3, 4, lanes[1])
            self.apply_write(sink, rest)
            self.assert_holds(target, DELETE_HISTORY, rest)
            sink.close()

    def test_drop_takes_the_lane(self) -> None:
        """While another instance holds the lane, either nothing is removed, or that instance fails at its next commit."""
        with self.target() as target:
            first, second = target.open(), self.require_drops(target.open())
            self.apply_write(first, self.write(DELETE_HISTORY, 0, 2))
            next_write = self.write(DELETE_HISTORY, 2, 4)
            first.prepare(next_write.lane, next_write.plan)
            try:
                second.drop(next_write.lane)
            except Fenced:
                first.apply([next_write], refuse_rejects)
                self.assert_holds(target, DELETE_HISTORY, next_write)
            else:
                try:
                    first.apply([next_write], refuse_rejects)
                except ReplicatorError:
                    second.drop(next_write.lane)
                    assert not second.list_artifacts(next_write.lane)
                else:
                    raise AssertionError("an instance went on with a lane that was dropped")
            first.close()
            second.close()
