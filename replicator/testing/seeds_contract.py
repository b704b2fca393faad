"""What a sink promises in which lanes can begin with snapshots (`ports.state_snapshots.Seeds`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from replicator.domain.plan import LaneState
from replicator.domain.policies import plan_for
from replicator.domain.position import Position
from replicator.domain.schema_versions import SchemaVersion
from replicator.domain.shape import Shape
from replicator.domain.table import Column, TableSpec
from replicator.ports.engine import Engine
from replicator.ports.frames import Lane
from replicator.ports.sink import RemembersSchemas
from replicator.ports.state_snapshots import Unfit

from .delivery import Delivering, Plans, Target, assert_rows, lane_of, under
from .histories import History, any_history
from .lane_shapes import KEYED
from .model_shapes import Wanted
from .sink_base import SinkBase, simple, writes
from .sink_columns import in_parts
from .sink_columns import plans as plans_by_column
from .sink_shapes import Lines
from .source import Statement

TEXTS = TableSpec("public.items", (Column("id", pa.int64()), Column("v", pa.string())), ("id",), 2)
WIDER = TableSpec("public.items", (*TEXTS.columns, Column("w", pa.string())), ("id",), 2)
HISTORY = simple(*writes(0, 1), Statement("delete", 0), *writes(1, salt=5), *writes(2))


@dataclass(frozen=True)
class Begins:
    """What lanes of one kind begin with: histories under a policy and plans, as the model says them."""

    policy: str
    histories: st.SearchStrategy[History]
    plans: Plans = plan_for
    wanted: Wanted | None = None


def softly(policy: str, table: TableSpec) -> Any:
    """`plan_for` of rows that are marked when they are deleted."""
    return plan_for(policy, table, None, Shape(soft_deletes=True))


KINDS: Mapping[str, Begins] = {
    "scd1": Begins("scd1", any_history(KEYED)),
    "in any order": Begins("scd1", any_history(KEYED, 6)),
    "soft": Begins("scd1", any_history(KEYED), softly, Wanted(soft_deletes=True)),
    "by column": Begins("scd1", in_parts(), plans_by_column, Wanted(by_column=True)),
    "versions": Begins("scd2", any_history(KEYED, 6)),
    "changes": Begins("append", any_history((*KEYED, "none"))),
    "watermark": Begins("append", any_history(KEYED, 6), under(timedelta(minutes=2))),
}


Rows = Sequence[Mapping[str, Any]]
REMEMBERED: Mapping[str, tuple[Rows, Rows, str, Sequence[Any]]] = {
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
"""Changes that the lake has applied, others that follow, and what the target then has in one column."""


class SeedsContract(SinkBase):
    """The promises of `Seeds`. `kinds`: of the lanes that are tried, where the sink knows not all. `unkept`: a text that the
    target cannot keep in a column `v`, and a lake can; None where there is none."""

    kinds: tuple[str, ...] = tuple(KINDS)
    unkept: str | None = None

    def new_lake(self) -> tuple[Target, Path]:
        """A fresh plain lake, and its folder."""
        raise NotImplementedError

    def lake_engine(self) -> Engine[Any]:
        """An engine whose frames a plain lake takes: tables of Arrow."""
        raise NotImplementedError

    @pytest.mark.parametrize("kind", KINDS)
    def test_it_goes_on_as_if_it_had_applied_everything(self, kind: str) -> None:
        """Random histories of which the lake has the first batches: rows, state and schemas are the lane's, and after each
        batch that follows it holds what the model says."""
        if kind not in self.kinds:
            pytest.skip("the sink has no such lanes")
        one = KINDS[kind]

        @self.for_all(history=one.histories, at=st.integers(1, 8))
        def check(history: History, at: int) -> None:
            lake, folder = self.new_lake()
            with self.target() as target:
                first = Delivering(self.lake_engine(), lake, history, one.policy, one.plans, one.wanted)
                for delivery in history.deliveries[:at]:
                    first.deliver(delivery)
                state = remembering(first)
                first.sink.close()
                if state is None:
                    return
                self.begin(target, first, folder, state)
                self.go_on(target, first, history.deliveries[at:])

    def begin(self, target: Target, first: Delivering, folder: Path, state: LaneState) -> None:
        """Let the lane begin with what was delivered so far."""
        sink: Any = target.open()
        sink.seed(first.lane, first.plan, first.lane, str(folder))
        assert told(sink.state(first.lane)) == told(state)
        if isinstance(sink, RemembersSchemas):
            assert [one.number for one in sink.schemas(first.lane)] == [1]
        sink.close()
        assert_rows(target, first.lane, first.plan, first.history, first.reached, wanted=first.wanted)

    def go_on(self, target: Target, first: Delivering, deliveries: Any) -> None:
        """The other batches."""
        said = (self.new_engine(), target, first.history, first.policy, first.plans, first.wanted)
        rest = Delivering(*said, to_frame=self.to_frame, to_arrow=self.to_arrow)
        rest.table, rest.reached = first.table, first.reached
        rest.sink.prepare(rest.lane, rest.plan)
        for delivery in deliveries:
            rest.deliver(delivery)
            rest.as_the_model()
        rest.sink.close()

    @pytest.mark.parametrize("kind", REMEMBERED)
    def test_what_is_remembered_goes_along(self, kind: str) -> None:
        """An older change that comes later is judged by what is kept beside the rows: a delete, the sequences of single
        columns, a delete that has ended no version."""
        if kind not in self.kinds:
            pytest.skip("the sink has no such lanes")
        before, after, column, expected = REMEMBERED[kind]
        lake, folder = self.new_lake()
        first = _lines(_InLake(self), lake, kind)
        for row in before:
            first.send([row])
        first.sink.close()
        with self.target() as target:
            sink: Any = target.open()
            sink.seed(first.lane, first.plan, first.lane, str(folder))
            sink.close()
            rest = _lines(self, target, kind)
            rest.sent = first.sent
            for row in after:
                rest.send([row])
            found = [row[column] for row in target.rows(rest.lane)]
            rest.sink.close()
        assert sorted(found) == expected, found

    def test_killed_it_may_be_repeated(self) -> None:
        """One that failed half way, since a file of the snapshot was gone, has left no state."""
        lane = lane_of("scd1")
        damaged, folder = self.filled(lane)
        for file in (folder / lane.into).rglob("*.parquet"):
            file.unlink()
        _, whole = self.filled(lane)
        with self.target() as target:
            sink: Any = target.open()
            plan = plan_for("scd1", HISTORY.table())
            with pytest.raises(Exception):  # noqa: B017 - whatever says that a file is not there
                sink.seed(lane, plan, lane, str(folder))
            assert sink.state(lane) is None
            sink.seed(lane, plan, lane, str(whole))
            assert sink.state(lane) is not None
            sink.close()
            assert_rows(target, lane, plan, HISTORY)
        damaged.close()

    def filled(self, lane: Lane) -> tuple[Target, Path]:
        """A lake that has the whole of a history."""
        lake, folder = self.new_lake()
        first = Delivering(self.lake_engine(), lake, HISTORY, lane.policy)
        first.run()
        return lake, folder

    def test_what_the_target_cannot_keep_is_not_left_out(self) -> None:
        """Unfit, and there is no state."""
        if self.unkept is None:
            pytest.skip("the target keeps what a lake does")
        lake, folder = self.new_lake()
        lines = Lines(_InLake(self), lake, TEXTS, Shape())
        lines.send([{"op": "c", "log": 1, "id": 1, "v": "kept"}, {"op": "c", "log": 2, "id": 2, "v": self.unkept}])
        lines.sink.close()
        with self.target() as target:
            sink: Any = target.open()
            with pytest.raises(Unfit):
                sink.seed(lines.lane, lines.plan, lines.lane, str(folder))
            assert sink.state(lines.lane) is None
            sink.close()


def _lines(suite: SinkBase, target: Target, kind: str) -> Lines:
    """A stream into a lane of that kind."""
    table, by_column = (WIDER, True) if kind == "by column" else (TEXTS, False)
    return Lines(suite, target, table, Shape(by_column=by_column), policy=KINDS[kind].policy)


class _InLake(SinkBase):
    """What writes the lake of a suite."""

    def __init__(self, suite: SeedsContract) -> None:
        self.new_engine = suite.lake_engine  # type: ignore[method-assign]


def remembering(first: Delivering) -> LaneState | None:
    """The state of the lane, which has met one schema."""
    sink: Any = first.target.open()
    state: LaneState | None = sink.state(first.lane)
    if state is not None:
        table = first.table
        sink.remember(first.lane, SchemaVersion(1, table, table.columns, Position(), datetime(2026, 3, 1, tzinfo=UTC)))
    sink.close()
    return state


def told(state: LaneState | None) -> Any:
    """What of a state does not depend on where it is kept."""
    assert state is not None
    return state.position, state.high, state.floor, state.ledger_high, state.rule, dict(state.reached), state.cuts
