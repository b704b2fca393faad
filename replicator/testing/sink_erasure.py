"""The promises of a sink that erases keys (`ports.sink.KeyErasure`), or frees space; part of
`sink_contract.SinkContract`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from replicator.domain.errors import Fenced, ReplicatorError
from replicator.domain.policy.policies import plan_for
from replicator.domain.policy.policy_names import POLICY_NAMES
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.rows import NO_ROW_TRANSFORMS, RowTransforms
from replicator.ports.frames import Write
from replicator.ports.sink import KeyErasure, Sink

from .contract import require
from .delivery import SinkTarget, make_lane
from .histories import changes_frame
from .model import Change
from .sink_base import IDENTITY, SinkBase, refuse_rejects, require_feature
from .source import SourceEvent

KEYED_TABLE = TableSpec("public.items", (Column("k1", pa.int64()), Column("v1", pa.string())), ("k1",), 3)
PLACE = TopicPartition("cdc.public.items", 0)


class SinkErasure(SinkBase):
    """The promises of `KeyErasure`, for sinks that have it, and of `SinkFeatures.compact` and `vacuum`."""

    def open_erasure(self, target: SinkTarget) -> tuple[Sink[Any], KeyErasure]:
        """A sink and its erasure. Skips the running test if there is none."""
        sink = target.open()
        return sink, require_feature(sink.features.erasure, "the sink takes no single keys away")

    @pytest.mark.parametrize(
        ("policy", "shape"),
        [
            *(pytest.param(policy, NO_ROW_TRANSFORMS, id=policy) for policy in POLICY_NAMES),
            pytest.param("scd1", RowTransforms(has_column_versions=True), id="by_column"),
        ],
    )
    def test_a_key_is_erased(self, policy: str, shape: RowTransforms) -> None:
        """Under every policy: exactly its rows, versions and changes, and its tombstones, so that an older change
        applies as to a new key. The position stays, and the lane continues. A second erasure does nothing."""
        with self.target() as target:
            (sink, erasure), lane = self.open_erasure(target), make_lane(policy)
            self._apply_erased(sink, lane, shape, 0, ("c", 1, 1), ("c", 2, 2), ("u", 1, 3), ("d", 1, 9), ("c", 3, 4))
            before = sink.state(lane)
            done = erasure.erase(lane, {"k1": "1"})
            assert done.rows + done.side_rows > 0
            after = sink.state(lane)
            assert before and after and after.position == before.position
            assert {row["k1"] for row in target.rows(lane)} == {2, 3}
            again = erasure.erase(lane, {"k1": "1"})
            assert (again.rows, again.side_rows) == (0, 0)
            self._apply_erased(sink, lane, shape, 5, ("c", 1, 5), ("u", 2, 6))
            assert {row["k1"] for row in target.rows(lane)} == {1, 2, 3}
            sink.close()

    def test_erasing_nothing(self) -> None:
        """A lane without a target has no rows. A text that does not fit the key type matches no row."""
        with self.target() as target:
            (sink, erasure), lane = self.open_erasure(target), make_lane("scd1")
            assert erasure.erase(lane, {"k1": "1"}).rows == 0
            erasure.end_versions(lane)
            self._apply_erased(sink, lane, NO_ROW_TRANSFORMS, 0, ("c", 1, 1))
            assert erasure.erase(lane, {"k1": "one"}).rows == 0 and [row["k1"] for row in target.rows(lane)] == [1]
            sink.close()

    def test_erasing_takes_the_lane(self) -> None:
        """While another instance holds the lane, either nothing is removed, or that instance fails at its next commit."""
        with self.target() as target:
            first, (second, erasure), lane = target.open(), self.open_erasure(target), make_lane("scd1")
            self._apply_erased(first, lane, NO_ROW_TRANSFORMS, 0, ("c", 1, 1))
            try:
                erasure.erase(lane, {"k1": "1"})
            except Fenced:
                assert [row["k1"] for row in target.rows(lane)] == [1]
            else:
                try:
                    self._apply_erased(first, lane, NO_ROW_TRANSFORMS, 1, ("c", 2, 2), prepare=False)
                except ReplicatorError:
                    assert not target.rows(lane)
                else:
                    raise AssertionError("an instance went on with a lane from which a key was taken")
            first.close()
            second.close()

    def test_versions_end(self) -> None:
        """The rows stay, and the lane continues."""
        with self.target() as target:
            (sink, erasure), lane = self.open_erasure(target), make_lane("scd2")
            self._apply_erased(sink, lane, NO_ROW_TRANSFORMS, 0, ("c", 1, 1), ("c", 2, 2))
            erasure.erase(lane, {"k1": "1"})
            erasure.end_versions(lane)
            self._apply_erased(sink, lane, NO_ROW_TRANSFORMS, 2, ("u", 2, 3))
            assert {row["k1"] for row in target.rows(lane)} == {2}
            sink.close()

    def test_compact_and_vacuum_leave_the_rows(self) -> None:
        """While another instance holds the lane and continues. Nothing happens without a target."""
        with self.target() as target:
            first, second, lane = target.open(), target.open(), make_lane("scd1")
            compact, vacuum = second.features.compact, second.features.vacuum
            there: list[Callable[[], object]] = [] if compact is None else [partial(compact, lane)]
            there += [] if vacuum is None else [partial(vacuum, lane, None, dry_run=False)]
            require(bool(there), "the sink neither compacts nor vacuums")
            assert [act() for act in there] == [None] * len(there)
            for number in range(3):
                self._apply_erased(first, lane, NO_ROW_TRANSFORMS, number, ("c", number, number + 1))
            state = first.state(lane)
            assert None not in [act() for act in there]
            assert (first.state(lane), second.state(lane)) == (state, state)
            self._apply_erased(first, lane, NO_ROW_TRANSFORMS, 3, ("d", 0, 9))
            assert {row["k1"] for row in target.rows(lane)} == {1, 2}
            first.close()
            second.close()

    def _apply_erased(
        self, sink: Any, lane: Any, shape: RowTransforms, start: int, *changes: tuple[str, int, int], prepare: bool = True
    ) -> None:
        """Apply changes (operation, key, sequence) from that offset on."""
        plan, engine = plan_for(lane.policy, KEYED_TABLE, None, shape), self.new_engine()
        frame = [
            (SourceEvent(0, offset, 0, (key,), None), Change(op, (sequence, 0, 0), {"k1": key, "v1": f"{op}{sequence}"}))
            for offset, (op, key, sequence) in enumerate(changes, start)
        ]
        folded = engine.fold(self.to_frame(changes_frame(frame, KEYED_TABLE, PLACE.topic)), plan)
        span = Span(Position({PLACE: start}), Position({PLACE: start + len(changes)}))
        write = Write(lane, plan, folded, span, IDENTITY)
        if prepare:
            sink.prepare(lane, plan)
        sink.apply([write], refuse_rejects)
