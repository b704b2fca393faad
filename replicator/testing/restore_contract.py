"""The promises of a sink in which lanes can start from checkpoints (`ports.sink.SinkFeatures.restore_state`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position
from replicator.domain.schema_evolution import SchemaVersion
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.engine import Engine
from replicator.ports.frames import Lane
from replicator.ports.sink import CheckpointUnsupported, StoredLane

from .delivery import DeliveryRun, Plans, SinkTarget, assert_rows, make_lane, make_watermark_plans
from .histories import History, any_histories
from .model_transforms import ModelRowTransforms
from .sink_base import SinkBase, make_history, make_writes
from .sink_contract import plan_soft_deletes
from .sink_row_transforms import LaneStream, partial_histories
from .sink_row_transforms import plan_column_versions as plans_by_column
from .source import Statement
from .transform_cases import KEYED_TYPES

TEXTS = TableSpec("public.items", (Column("id", pa.int64()), Column("v", pa.string())), ("id",), 2)
WIDER = TableSpec("public.items", (*TEXTS.columns, Column("w", pa.string())), ("id",), 2)
HISTORY = make_history(*make_writes(0, 1), Statement("delete", 0), *make_writes(1, salt=5), *make_writes(2))


@dataclass(frozen=True)
class RestoreCase:
    """The histories of one kind of lane, with their policy, plans and model."""

    policy: str
    histories: st.SearchStrategy[History]
    plans: Plans = plan_for
    wanted: ModelRowTransforms | None = None


RESTORE_CASES: Mapping[str, RestoreCase] = {
    "scd1": RestoreCase("scd1", any_histories(KEYED_TYPES)),
    "in any order": RestoreCase("scd1", any_histories(KEYED_TYPES, 6)),
    "soft": RestoreCase("scd1", any_histories(KEYED_TYPES), plan_soft_deletes, ModelRowTransforms(soft_deletes=True)),
    "by column": RestoreCase("scd1", partial_histories(), plans_by_column, ModelRowTransforms(has_column_versions=True)),
    "versions": RestoreCase("scd2", any_histories(KEYED_TYPES, 6)),
    "changes": RestoreCase("append", any_histories((*KEYED_TYPES, "none"))),
    "watermark": RestoreCase("append", any_histories(KEYED_TYPES, 6), make_watermark_plans(timedelta(minutes=2))),
}


Rows = Sequence[Mapping[str, Any]]
REMEMBERED_CASES: Mapping[str, tuple[Rows, Rows, str, Sequence[Any]]] = {
    "scd1": (
        [{"op": "c", "log": 1, "id": 1, "v": "a"}, {"op": "d", "log": 5, "id": 1}],
        [{"op": "c", "log": 3, "id": 1, "v": "late"}],
        "v",
        [],
    ),
    "by column": (
        [{"op": "c", "log": 1, "id": 1, "v": "a", "w": "a"}, {"op": "u", "log": 9, "id": 1, "w": "b", "unsent": ["v"]}],
        [{"op": "u", "log": 5, "id": 1, "v": "late", "unsent": ["w"]}],
        "v",
        ["late"],
    ),
    "versions": (
        [{"op": "c", "log": 7, "id": 2, "v": "a"}, {"op": "d", "log": 5, "id": 1}],
        [{"op": "c", "log": 3, "id": 1, "v": "late"}, {"op": "d", "log": 8, "id": 2}],
        "_cdc_end_seq_1",
        [5, 8],
    ),
}
"""Changes that the lake has applied, later changes, and then the target's values in one column."""


class RestoreContract(SinkBase):
    """The promises of `RestoresState`.

    `case_names`: the kinds of lanes that the sink supports. `unsupported_text`: a text that a lake can store in a
    column `v`, but the target cannot; None if there is none.
    """

    case_names: tuple[str, ...] = tuple(RESTORE_CASES)
    unsupported_text: str | None = None

    def new_lake(self) -> tuple[SinkTarget, Path]:
        """A fresh plain lake, and its folder."""
        raise NotImplementedError

    def lake_engine(self) -> Engine[Any]:
        """An engine whose frames a plain lake accepts: `pyarrow.Table`."""
        raise NotImplementedError

    @pytest.mark.parametrize("kind", RESTORE_CASES)
    def test_restored_lane_continues_like_the_model(self, kind: str) -> None:
        """Random histories whose first batches are in the lake. The lane gets its rows, state and schemas, and
        after each further batch it equals the model."""
        if kind not in self.case_names:
            pytest.skip("the sink has no such lanes")
        one = RESTORE_CASES[kind]

        @self.for_all(history=one.histories, at=st.integers(1, 8))
        def check(history: History, at: int) -> None:
            lake, _ = self.new_lake()
            with self.target() as target:
                first = DeliveryRun(self.lake_engine(), lake, history, one.policy, one.plans, one.wanted)
                for delivery in history.deliveries[:at]:
                    first.deliver(delivery)
                state = read_state(first)
                first.sink.close()
                if state is None:
                    return
                self.restore_lane(target, first, lake, state)
                self.apply_rest(target, first, history.deliveries[at:])

    def restore_lane(self, target: SinkTarget, first: DeliveryRun, lake: SinkTarget, state: LaneState) -> None:
        """Start the lane from the batches delivered so far."""
        with closing(target.open()) as sink:
            restore_state(sink, first.lane, first.plan, lake)
            assert to_comparable(sink.state(first.lane)) == to_comparable(state)
            if (schemas := sink.features.schemas) is not None:
                assert [one.number for one in schemas.schemas(first.lane)] == [1]
        assert_rows(target, first.lane, first.plan, first.history, first.reached, wanted=first.wanted)

    def apply_rest(self, target: SinkTarget, first: DeliveryRun, deliveries: Any) -> None:
        """Apply the other batches."""
        arguments = (self.new_engine(), target, first.history, first.policy, first.plans, first.wanted)
        rest = DeliveryRun(*arguments, to_frame=self.to_frame, to_arrow=self.to_arrow)
        rest.table, rest.reached = first.table, first.reached
        rest.sink.prepare(rest.lane, rest.plan)
        for delivery in deliveries:
            rest.deliver(delivery)
            rest.compare_with_model()
        rest.sink.close()

    @pytest.mark.parametrize("kind", REMEMBERED_CASES)
    def test_restore_includes_metadata_for_late_changes(self, kind: str) -> None:
        """A late change is compared with the metadata that was stored with the rows: a tombstone, column versions, or a
        delete that ended no version."""
        if kind not in self.case_names:
            pytest.skip("the sink has no such lanes")
        before, after, column, expected = REMEMBERED_CASES[kind]
        lake, _ = self.new_lake()
        first = _make_stream(_LakeSuite(self), lake, kind)
        for row in before:
            first.send([row])
        first.sink.close()
        with self.target() as target:
            with closing(target.open()) as sink:
                restore_state(sink, first.lane, first.plan, lake)
            rest = _make_stream(self, target, kind)
            rest.sent = first.sent
            for row in after:
                rest.send([row])
            cells = [row[column] for row in target.rows(rest.lane)]
            rest.sink.close()
        assert sorted(cells) == expected, cells

    def test_failed_restore_can_be_repeated(self) -> None:
        """A restore that fails half way, because a file of the checkpoint is missing, leaves no state. Another restore
        succeeds."""
        lane = make_lane("scd1")
        damaged, folder = self.make_lake(lane)
        for file in (folder / lane.into).rglob("*.parquet"):
            file.unlink()
        whole, _ = self.make_lake(lane)
        with self.open_sink() as (target, sink):
            plan = plan_for("scd1", HISTORY.table())
            with pytest.raises(Exception):  # noqa: B017 - any error for a missing file
                restore_state(sink, lane, plan, damaged)
            assert sink.state(lane) is None
            restore_state(sink, lane, plan, whole)
            assert sink.state(lane) is not None
            assert_rows(target, lane, plan, HISTORY)
        damaged.close()

    def make_lake(self, lane: Lane) -> tuple[SinkTarget, Path]:
        """A lake with a whole history."""
        lake, folder = self.new_lake()
        first = DeliveryRun(self.lake_engine(), lake, HISTORY, lane.policy)
        first.run()
        return lake, folder

    def test_unsupported_value_raises_checkpoint_unsupported(self) -> None:
        """A value that the target cannot store is not left out: the restore raises CheckpointUnsupported, and there is
        no state."""
        if self.unsupported_text is None:
            pytest.skip("the target keeps what a lake does")
        lake, _ = self.new_lake()
        lines = LaneStream(_LakeSuite(self), lake, TEXTS, RowTransforms())
        lines.send([{"op": "c", "log": 1, "id": 1, "v": "kept"}, {"op": "c", "log": 2, "id": 2, "v": self.unsupported_text}])
        lines.sink.close()
        with self.open_sink() as (_, sink):
            with pytest.raises(CheckpointUnsupported):
                restore_state(sink, lines.lane, lines.plan, lake)
            assert sink.state(lines.lane) is None


def open_stored_lane(lake: SinkTarget, lane: Lane, plan: ApplyPlan) -> StoredLane:
    """The lane in a lake that `RestoreContract.new_lake` gave."""
    with closing(cast(Any, lake.open())) as sink:
        stored: StoredLane = sink.features.open_stored_lane(lane, plan)
        return stored


def restore_state(sink: Any, lane: Lane, plan: ApplyPlan, lake: SinkTarget) -> None:
    """Start the lane from its state in a lake."""
    sink.features.restore_state(lane, plan, open_stored_lane(lake, lane, plan))


def _make_stream(suite: SinkBase, target: SinkTarget, kind: str) -> LaneStream:
    """A stream into a lane of that kind."""
    table, by_column = (WIDER, True) if kind == "by column" else (TEXTS, False)
    return LaneStream(suite, target, table, RowTransforms(has_column_versions=by_column), policy=RESTORE_CASES[kind].policy)


class _LakeSuite(SinkBase):
    """The suite that writes the lake."""

    def __init__(self, suite: RestoreContract) -> None:
        self.new_engine = suite.lake_engine  # type: ignore[method-assign]


def read_state(first: DeliveryRun) -> LaneState | None:
    """The state of the lane, with one stored schema."""
    with closing(cast(Any, first.target.open())) as sink:
        state: LaneState | None = sink.state(first.lane)
        if state is not None:
            table = first.table
            version = SchemaVersion(1, table, table.columns, Position(), datetime(2026, 3, 1, tzinfo=UTC))
            sink.features.schemas.remember(first.lane, version)
    return state


def to_comparable(state: LaneState | None) -> Any:
    """The parts of a state that do not depend on the sink."""
    assert state is not None
    return (
        state.position,
        state.max_sequence,
        state.truncated_at,
        state.max_side_table_sequence,
        state.rule,
        dict(state.max_event_time),
        state.truncates,
    )
