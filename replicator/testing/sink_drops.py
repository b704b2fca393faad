"""The promises of a sink that can drop lanes (`ports.sink.LaneRemoval`); part of `sink_contract.SinkContract`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from replicator.domain.errors import Fenced, ReplicatorError
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.ports.frames import Write
from replicator.ports.sink import LaneRemoval, Sink

from .delivery import SinkTarget, make_lane
from .histories import changes_frame
from .model import Change
from .sink_base import IDENTITY, SinkBase, make_history, make_writes, refuse_rejects, require_feature
from .source import SourceEvent, Statement

DELETE_HISTORY = make_history(*make_writes(0, 1), Statement("delete", 0), *make_writes(1, salt=5))
"""The first key has a tombstone."""
KEYED_TABLE = TableSpec("public.items", (Column("k1", pa.int64()), Column("v1", pa.string())), ("k1",), 3)


class SinkDrops(SinkBase):
    """The promises of `LaneRemoval`, for sinks that have it."""

    def open_removal(self, target: SinkTarget) -> tuple[Sink[Any], LaneRemoval]:
        """A sink and its removal of lanes. Skips the running test if there is none."""
        sink = target.open()
        return sink, require_feature(sink.features.removal, "the sink drops no lanes")

    def test_drop_leaves_nothing(self) -> None:
        """No state and no metadata: the same changes apply as in a new lane, also under another policy."""
        with self.target() as target:
            sink, removal = self.open_removal(target)
            whole = self.write(DELETE_HISTORY, 0, 4)
            self.apply_write(sink, whole)
            assert "table" in {one.what for one in removal.list_artifacts(whole.lane)}
            assert not [one for one in removal.list_artifacts(whole.lane) if one.stays]
            removal.drop(whole.lane)
            assert not removal.list_artifacts(whole.lane) and sink.state(whole.lane) is None
            self.apply_write(sink, self.write(DELETE_HISTORY, 0, 2))
            self.assert_holds(target, DELETE_HISTORY, whole, 2)
            for policy in sorted(sink.features.policies - {"scd1", "event_log"}):
                removal.drop(whole.lane)
                other = self.write(DELETE_HISTORY, 0, 4, make_lane(policy))
                self.apply_write(sink, other)
                self.assert_holds(target, DELETE_HISTORY, other)
            sink.close()

    def test_drop_removes_tombstones(self) -> None:
        """An old tombstone does not reject an older row after the drop."""
        with self.target() as target:
            (sink, removal), lane = self.open_removal(target), make_lane("scd1")
            self._put_changes(sink, ("c", 0, 1), ("d", 0, 9))
            removal.drop(lane)
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
            sink, removal = self.open_removal(target)
            write = self.write(DELETE_HISTORY, 0, 4)
            assert not removal.list_artifacts(write.lane)
            removal.drop(write.lane)
            self.apply_write(sink, write)
            for _ in range(2):
                removal.drop(write.lane)
                assert not removal.list_artifacts(write.lane) and sink.state(write.lane) is None
            self.apply_write(sink, write)
            self.assert_holds(target, DELETE_HISTORY, write)
            sink.close()

    def test_drop_leaves_other_lanes(self) -> None:
        """Rows, state and tombstones of another lane stay, and it continues."""
        lanes = [make_lane("scd1"), make_lane("scd1", "other")]
        with self.target() as target:
            sink, removal = self.open_removal(target)
            for lane in lanes:
                self.apply_write(sink, self.write(DELETE_HISTORY, 0, 3, lane))
            before = sink.state(lanes[1]), removal.list_artifacts(lanes[1])
            removal.drop(lanes[0])
            assert (sink.state(lanes[1]), removal.list_artifacts(lanes[1])) == before
            rest = self.write(DELETE_HISTORY, 3, 4, lanes[1])
            self.apply_write(sink, rest)
            self.assert_holds(target, DELETE_HISTORY, rest)
            sink.close()

    def test_drop_takes_the_lane(self) -> None:
        """While another instance holds the lane, either nothing is removed, or that instance fails at its next commit."""
        with self.target() as target:
            first, (second, removal) = target.open(), self.open_removal(target)
            self.apply_write(first, self.write(DELETE_HISTORY, 0, 2))
            next_write = self.write(DELETE_HISTORY, 2, 4)
            first.prepare(next_write.lane, next_write.plan)
            try:
                removal.drop(next_write.lane)
            except Fenced:
                first.apply([next_write], refuse_rejects)
                self.assert_holds(target, DELETE_HISTORY, next_write)
            else:
                try:
                    first.apply([next_write], refuse_rejects)
                except ReplicatorError:
                    removal.drop(next_write.lane)
                    assert not removal.list_artifacts(next_write.lane)
                else:
                    raise AssertionError("an instance went on with a lane that was dropped")
            first.close()
            second.close()
