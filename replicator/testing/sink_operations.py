"""The promises of a sink for operations on whole targets: drop, erase, swap, bulk load, writes out of band."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from replicator.domain.errors import DataLoss, Fatal, Fenced, ReplicatorError
from replicator.domain.policy import POLICY_NAMES
from replicator.domain.policy.plan import CDC_APPLIED_AT, EVENT_ID, Counts, LaneState
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import EMPTY_SPAN, Span
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.rows import NO_ROW_TRANSFORMS, RowTransforms
from replicator.ports.frames import FoldedChanges, Lane, Write
from replicator.ports.sink import BulkLoads, KeyErasure, LaneRemoval, Sink

from .contract import require
from .delivery import SinkTarget, make_lane, to_canonical_rows
from .histories import History, scrambled_histories
from .model import fold_changes
from .sink_base import (
    SIMPLE,
    LaneWriter,
    SinkBase,
    fail_on_rejects,
    make_history,
    make_keyed_changes,
    make_writes,
    refuse_rejects,
    require_feature,
)
from .source import SourceEvent, Statement

# Drop: `ports.sink.LaneRemoval`

DELETE_HISTORY = make_history(*make_writes(0, 1), Statement("delete", 0), *make_writes(1, salt=5))
"""The first key has a tombstone."""
KEYED_TABLE = TableSpec("public.items", (Column("k1", pa.int64()), Column("v1", pa.string())), ("k1",), 3)
KEYED_PLAN = plan_for("scd1", KEYED_TABLE)


def takes_over(operation: Callable[[], object], write: Callable[[], object]) -> bool:
    """Run an operation on a lane that another instance holds, and then a write of that instance. Exactly one of them
    fails. True if it is the write."""
    try:
        operation()
    except Fenced:
        write()
        return False
    with pytest.raises(ReplicatorError):
        write()
    return True


class SinkDrops(SinkBase):
    """The promises of `LaneRemoval`, for sinks that have it."""

    def get_removal(self, sink: Sink[Any]) -> LaneRemoval:
        """The removal of lanes. Skips the running test if there is none."""
        return require_feature(sink.features.removal, "the sink cannot drop lanes")

    def test_drop_removes_rows_state_and_metadata(self) -> None:
        """The same changes apply as in a new lane, also under another policy."""
        with self.open_sink() as (target, sink):
            removal = self.get_removal(sink)
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

    def test_drop_removes_tombstones(self) -> None:
        """An old tombstone does not reject an older row after the drop."""
        with self.open_lane(KEYED_PLAN) as run:
            removal = self.get_removal(run.sink)
            run.send_changes(make_keyed_changes(("c", 0, 1), ("d", 0, 9)))
            removal.drop(run.lane)
            run.sink.prepare(run.lane, run.plan)
            run.send_changes(make_keyed_changes(("c", 5, 2), ("d", 5, 8)))
            run.send_changes(make_keyed_changes(("c", 0, 3)))
            assert [row["k1"] for row in run.rows()] == [0]

    def test_drop_may_be_repeated(self) -> None:
        """A second drop, and a drop of an unknown lane, do nothing. `list_artifacts` does nothing either."""
        with self.open_sink() as (target, sink):
            removal = self.get_removal(sink)
            write = self.write(DELETE_HISTORY, 0, 4)
            assert not removal.list_artifacts(write.lane)
            removal.drop(write.lane)
            self.apply_write(sink, write)
            for _ in range(2):
                removal.drop(write.lane)
                assert not removal.list_artifacts(write.lane) and sink.state(write.lane) is None
            self.apply_write(sink, write)
            self.assert_holds(target, DELETE_HISTORY, write)

    def test_drop_leaves_other_lanes(self) -> None:
        """Rows, state and tombstones of another lane stay, and it continues."""
        lanes = [make_lane("scd1"), make_lane("scd1", "other")]
        with self.open_sink() as (target, sink):
            removal = self.get_removal(sink)
            for lane in lanes:
                self.apply_write(sink, self.write(DELETE_HISTORY, 0, 3, lane))
            before = sink.state(lanes[1]), removal.list_artifacts(lanes[1])
            removal.drop(lanes[0])
            assert (sink.state(lanes[1]), removal.list_artifacts(lanes[1])) == before
            rest = self.write(DELETE_HISTORY, 3, 4, lanes[1])
            self.apply_write(sink, rest)
            self.assert_holds(target, DELETE_HISTORY, rest)

    def test_drop_of_a_held_lane_fences_one_instance(self) -> None:
        """While another instance holds the lane, either nothing is removed, or that instance fails at its next commit."""
        with self.open_sink() as (target, first), closing(target.open()) as second:
            removal = self.get_removal(second)
            self.apply_write(first, self.write(DELETE_HISTORY, 0, 2))
            rest = self.write(DELETE_HISTORY, 2, 4)
            first.prepare(rest.lane, rest.plan)
            if takes_over(lambda: removal.drop(rest.lane), lambda: first.apply([rest], refuse_rejects)):
                removal.drop(rest.lane)
                assert not removal.list_artifacts(rest.lane)
            else:
                self.assert_holds(target, DELETE_HISTORY, rest)


# Erase keys (`ports.sink.KeyErasure`) and free space


class SinkErasure(SinkBase):
    """The promises of `KeyErasure`, for sinks that have it, and of `SinkFeatures.compact` and `vacuum`."""

    def get_erasure(self, sink: Sink[Any]) -> KeyErasure:
        """The erasure of keys. Skips the running test if there is none."""
        return require_feature(sink.features.erasure, "the sink cannot erase keys")

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
        with self.open_sink() as (target, sink):
            erasure, lane = self.get_erasure(sink), make_lane(policy)
            run = LaneWriter(self, target, plan_for(policy, KEYED_TABLE, None, shape), lane, sink)
            run.send_changes(make_keyed_changes(("c", 1, 1), ("c", 2, 2), ("u", 1, 3), ("d", 1, 9), ("c", 3, 4)))
            before = sink.state(lane)
            done = erasure.erase(lane, {"k1": "1"})
            assert done.rows + done.side_rows > 0
            after = sink.state(lane)
            assert before and after and after.position == before.position
            assert {row["k1"] for row in target.rows(lane)} == {2, 3}
            again = erasure.erase(lane, {"k1": "1"})
            assert (again.rows, again.side_rows) == (0, 0)
            run.send_changes(make_keyed_changes(("c", 1, 5), ("u", 2, 6)))
            assert {row["k1"] for row in target.rows(lane)} == {1, 2, 3}

    def test_erasure_without_matching_rows_does_nothing(self) -> None:
        """A lane without a target has no rows. A text that does not fit the key type matches no row."""
        with self.open_sink() as (target, sink):
            erasure, lane = self.get_erasure(sink), make_lane("scd1")
            assert erasure.erase(lane, {"k1": "1"}).rows == 0
            erasure.end_versions(lane)
            LaneWriter(self, target, KEYED_PLAN, lane, sink).send_changes(make_keyed_changes(("c", 1, 1)))
            assert erasure.erase(lane, {"k1": "one"}).rows == 0 and [row["k1"] for row in target.rows(lane)] == [1]

    def test_erasure_in_a_held_lane_fences_one_instance(self) -> None:
        """While another instance holds the lane, either nothing is removed, or that instance fails at its next commit."""
        with self.open_sink() as (target, second):
            erasure = self.get_erasure(second)
            with closing(LaneWriter(self, target, KEYED_PLAN)) as first:
                first.send_changes(make_keyed_changes(("c", 1, 1)))
                is_erased = takes_over(
                    lambda: erasure.erase(first.lane, {"k1": "1"}),
                    lambda: first.send_changes(make_keyed_changes(("c", 2, 2))),
                )
                assert {row["k1"] for row in first.rows()} == (set() if is_erased else {1, 2})

    def test_older_versions_are_removed(self) -> None:
        """`end_versions` keeps the rows, and the lane continues."""
        with self.open_sink() as (target, sink):
            erasure = self.get_erasure(sink)
            run = LaneWriter(self, target, plan_for("scd2", KEYED_TABLE), sink=sink)
            run.send_changes(make_keyed_changes(("c", 1, 1), ("c", 2, 2)))
            erasure.erase(run.lane, {"k1": "1"})
            erasure.end_versions(run.lane)
            run.send_changes(make_keyed_changes(("u", 2, 3)))
            assert {row["k1"] for row in run.rows()} == {2}

    def test_compact_and_vacuum_leave_the_rows(self) -> None:
        """While another instance holds the lane and continues. Nothing happens without a target."""
        with self.open_sink() as (target, first), closing(target.open()) as second:
            lane = make_lane("scd1")
            compact, vacuum = second.features.compact, second.features.vacuum
            upkeep: list[Callable[[], object]] = [] if compact is None else [partial(compact, lane)]
            upkeep += [] if vacuum is None else [partial(vacuum, lane, None, dry_run=False)]
            require(bool(upkeep), "the sink neither compacts nor vacuums")
            assert [act() for act in upkeep] == [None] * len(upkeep)
            run = LaneWriter(self, target, KEYED_PLAN, lane, first)
            for number in range(3):
                run.send_changes(make_keyed_changes(("c", number, number + 1)))
            state = first.state(lane)
            assert None not in [act() for act in upkeep]
            assert (first.state(lane), second.state(lane)) == (state, state)
            run.send_changes(make_keyed_changes(("d", 0, 9)))
            assert {row["k1"] for row in target.rows(lane)} == {1, 2}


# Swap: `ports.sink.SinkFeatures.swap`

NO_SWAP = "the sink cannot swap targets"
SWAP_HISTORY = make_history(*make_writes(0, 1), Statement("delete", 0), *make_writes(1, salt=5), *make_writes(2))
LATE_DELETE = make_history(*make_writes(0), Statement("delete", 0))
"""An insert, then its delete."""


def decide_rebuilt(_: LaneState | None, rebuilt: LaneState) -> LaneState:
    """A decision that accepts the rebuilt state."""
    return rebuilt


def make_rebuild_lane(lane: Lane) -> Lane:
    """The lane that rebuilds the target."""
    return replace(lane, id=f"{lane.id}_anew", into=f"{lane.into}_anew")


class SinkSwaps(SinkBase):
    """The promises of `SinkFeatures.swap`, for sinks that have it."""

    @pytest.mark.parametrize("policy", POLICY_NAMES)
    def test_a_target_is_swapped(self, policy: str) -> None:
        """Under each policy the lane gets rows and state of the rebuild, which was behind, and continues from there."""
        require(policy in self.features().policies, f"the sink does not know policy {policy}")
        lane = make_lane(policy)
        with self.open_sink() as (target, sink):
            swap = require_feature(sink.features.swap, NO_SWAP)
            whole, part = self.write(SWAP_HISTORY, 0, 5, lane), self.write(SWAP_HISTORY, 0, 3, make_rebuild_lane(lane))
            self.apply_write(sink, whole)
            self.apply_write(sink, part)
            state = sink.state(part.lane)
            assert swap(lane, part.lane, decide_rebuilt) == state == sink.state(lane)
            if (removal := sink.features.removal) is not None:
                removal.drop(part.lane)
            self.assert_holds(target, SWAP_HISTORY, replace(part, lane=lane), 3)
            again = self.apply_write(sink, self.write(SWAP_HISTORY, 0, 3, lane))
            assert again.counts.applied == 0
            rest = self.write(SWAP_HISTORY, 3, 5, lane)
            self.apply_write(sink, rest)
            self.assert_holds(target, SWAP_HISTORY, rest)

    def test_swap_includes_tombstones(self) -> None:
        """After the swap, a tombstone of the rebuild rejects older changes."""
        lane = make_lane("scd1")
        with self.target() as target, closing(OutOfBandRun(self, target, LATE_DELETE, "scd1")) as late:
            sink = late.sink
            swap = require_feature(sink.features.swap, NO_SWAP)
            self.apply_write(sink, self.write(LATE_DELETE, 0, 1, lane))
            self.apply_write(sink, self.write(LATE_DELETE, 0, 2, make_rebuild_lane(lane)))
            assert len(target.rows(lane)) == 1
            swap(lane, make_rebuild_lane(lane), decide_rebuilt)
            assert not target.rows(lane)
            sink.prepare(lane, late.plan)
            late.apply_out_of_band(LATE_DELETE.events[:1])
            assert not target.rows(lane) and late.counts.superseded + late.counts.duplicate == 1

    def test_refused_swap_changes_nothing(self) -> None:
        """If the decision raises an error, the rows and states of both lanes stay."""

        def no(_: LaneState | None, __: LaneState) -> LaneState:
            raise Fatal("no")

        lane = make_lane("scd1")
        with self.open_sink() as (target, sink):
            swap = require_feature(sink.features.swap, NO_SWAP)
            whole = self.write(SWAP_HISTORY, 0, 5, lane)
            self.apply_write(sink, whole)
            self.apply_write(sink, self.write(SWAP_HISTORY, 0, 3, make_rebuild_lane(lane)))
            before = sink.state(lane), sink.state(make_rebuild_lane(lane))
            with pytest.raises(Fatal, match="no"):
                swap(lane, make_rebuild_lane(lane), no)
            assert (sink.state(lane), sink.state(make_rebuild_lane(lane))) == before
            self.assert_holds(target, SWAP_HISTORY, whole)

    def test_swap_of_a_held_lane_fences_one_instance(self) -> None:
        """While another instance holds the lane, either nothing is changed, or that instance fails at its next commit."""
        lane = make_lane("scd1")
        with self.open_sink() as (target, first), closing(target.open()) as second:
            swap = require_feature(second.features.swap, NO_SWAP)
            self.apply_write(second, self.write(SWAP_HISTORY, 0, 3, make_rebuild_lane(lane)))
            self.apply_write(first, self.write(SWAP_HISTORY, 0, 4, lane))
            rest = self.write(SWAP_HISTORY, 4, 5, lane)
            first.prepare(lane, rest.plan)
            rebuild = make_rebuild_lane(lane)
            state = second.state(rebuild)
            if takes_over(lambda: swap(lane, rebuild, decide_rebuilt), lambda: first.apply([rest], refuse_rejects)):
                assert second.state(lane) == state
            else:
                self.assert_holds(target, SWAP_HISTORY, rest)


# Bulk load: `ports.sink.BulkLoads`

HISTORY = make_history(
    *make_writes(0, 1, 2, 3, 4),
    Statement("delete", 0),
    *make_writes(1, 2, salt=5),
    Statement("delete", 3),
    *make_writes(3, salt=9),
)
MORE_HISTORY = make_history(*HISTORY.statements, *make_writes(1, 5, salt=20), Statement("delete", 2))
POLICIES = ("scd1", "scd2")
PARTITIONS = 3


class SinkBulkLoad(SinkBase):
    """The promises of `BulkLoads`, for sinks that have it."""

    @contextmanager
    def open_bulk_load(self) -> Iterator[tuple[SinkTarget, Sink[Any], BulkLoads, Path]]:
        """A fresh target, a sink, its bulk load, and a folder. Skips the running test if there is no bulk load."""
        with self.open_sink() as (target, sink), TemporaryDirectory() as folder:
            yield target, sink, require_feature(sink.features.bulk_load, "the sink has no bulk load"), Path(folder)

    def make_partitions(self, write: Write[Any], number: int = PARTITIONS) -> tuple[list[FoldedChanges[Any]], Counts]:
        """The rows of a write in partitions by key, and the counts of their folds."""
        engine = self.new_engine()
        partitions = require_feature(engine.features.partitions, "the engine cannot partition frames by key")
        parts = partitions.split(write.folded.frame, write.plan.table.keys, number)
        folded = [engine.fold(part, write.plan) for part in parts if part.num_rows]
        return folded, sum((part.counts for part in folded), write.folded.counts)

    def remove_rows(self, write: Write[Any]) -> Write[Any]:
        """The write without rows, as `load` gets it."""
        engine = self.new_engine()
        return replace(write, folded=engine.fold(write.folded.frame.slice(0, 0), write.plan))

    def test_a_target_is_loaded_by_partition(self) -> None:
        """Under each policy the rows equal the model, and the state equals that of one write of all rows. Every
        change is accounted for, and the lane continues."""
        for policy in self.sample_cases(POLICIES):
            lane = make_lane(policy)
            with self.open_bulk_load() as (target, sink, bulk_load, folder):
                write = self.write(HISTORY, 0, len(HISTORY.events), lane)
                sink.prepare(lane, write.plan)
                assert bulk_load.loads(lane, write.plan)
                parts, counts = self.make_partitions(write)
                assert len(parts) > 1
                applied = bulk_load.load(self.remove_rows(write), parts, refuse_rejects, folder)
                assert (applied.counts + counts).total == len(HISTORY.changes())
                self.assert_holds(target, HISTORY, write)
                with self.open_sink() as (_, other):
                    self.apply_write(other, write)
                    assert sink.state(lane) == other.state(lane)
                rest = self.write(MORE_HISTORY, len(HISTORY.events), len(MORE_HISTORY.events), lane)
                self.apply_write(sink, rest)
                self.assert_holds(target, MORE_HISTORY, rest)
                late = self.apply_write(sink, write)
                assert late.counts.applied == 0

    def test_bulk_load_of_a_filled_target_is_refused(self) -> None:
        """A target with rows, or a lane with a position, is not loaded."""
        for policy in self.sample_cases(POLICIES):
            lane = make_lane(policy)
            with self.open_bulk_load() as (target, sink, bulk_load, folder):
                write = self.write(HISTORY, 0, 4, lane)
                self.apply_write(sink, write)
                assert not bulk_load.loads(lane, write.plan)
                rest = self.write(HISTORY, 4, len(HISTORY.events), lane)
                with pytest.raises(DataLoss):
                    bulk_load.load(self.remove_rows(rest), self.make_partitions(rest)[0], refuse_rejects, folder)
                self.assert_holds(target, HISTORY, write, 4)

    def test_a_load_that_fails_changes_nothing(self) -> None:
        """The rows end half way, or the rejects cannot be stored. The load can be repeated."""
        lane = make_lane("scd1")
        with self.open_bulk_load() as (target, sink, bulk_load, folder):
            write = self.write(HISTORY, 0, len(HISTORY.events), lane)
            sink.prepare(lane, write.plan)
            parts, _ = self.make_partitions(write)
            with pytest.raises(Fatal, match="half way"):
                bulk_load.load(self.remove_rows(write), FailingPartitions(parts), fail_on_rejects, folder)
            assert sink.state(lane) is None and not target.rows(lane)
            bulk_load.load(self.remove_rows(write), parts, refuse_rejects, folder)
            self.assert_holds(target, HISTORY, write)


class FailingPartitions:
    """Partitions that end in an error."""

    def __init__(self, parts: list[FoldedChanges[Any]]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[FoldedChanges[Any]]:
        yield self._parts[0]
        raise Fatal("half way")


# Out-of-band writes: changes that were left out of the stream and applied later


class OutOfBandRun(LaneWriter):
    """A history with some events left out of the stream and applied out of band later."""

    def __init__(self, suite: SinkBase, target: SinkTarget, history: History, policy: str) -> None:
        super().__init__(suite, target, plan_for(policy, history.table()), may_reject=True)
        self.history = history
        self.arrived: list[SourceEvent] = []

    def apply_stream(self, events: Sequence[SourceEvent], span: Span) -> None:
        """The stream, of which only `events` are usable."""
        self._apply_events(events, span, out_of_band=False)

    def apply_out_of_band(self, events: Sequence[SourceEvent], reject: Any = None) -> None:
        """Apply events that were left out."""
        self._apply_events(events, EMPTY_SPAN, out_of_band=True, reject=reject)

    def write(self, events: Sequence[SourceEvent], span: Span, *, out_of_band: bool) -> Write[Any]:
        """The changes of these events as one write."""
        frames = [self.suite.to_frame(self.history.frame([e], self.history.source.versions[e.version])) for e in events]
        empty = self.suite.to_frame(self.history.frame((), self.plan.table))
        changes = self.engine.frames.concat(frames or [empty], self.plan.table)
        return Write(self.lane, self.plan, self.engine.fold(changes, self.plan), span, out_of_band=out_of_band)

    def _apply_events(self, events: Sequence[SourceEvent], span: Span, *, out_of_band: bool, reject: Any = None) -> None:
        self.apply_write(self.write(events, span, out_of_band=out_of_band), reject)
        self.arrived += events

    def check_random_events(self, random: Random) -> None:
        """Leave out some events, apply them out of band in any order and batches, some twice, and compare."""
        events = list(self.history.events)
        late = {i for i in range(len(events)) if random.random() < 0.3}
        middle = random.randrange(len(events) + 1)
        for start, end in ((0, middle), (middle, len(events))):
            stream = [events[i] for i in range(start, end) if i not in late]
            self.apply_stream(stream, self.history.span(start, end))
        self.compare_with_model()
        before = self.list_states()
        left = [events[i] for i in sorted(late)]
        random.shuffle(left)
        while left:
            size = random.randrange(1, len(left) + 1)
            self.apply_out_of_band(left[:size])
            if random.random() < 0.5:
                self.apply_out_of_band(left[:size])
            left = left[size:]
            self.compare_with_model()
        self.compare_with_log_order()
        assert self.list_states() == before

    def compare_with_model(self) -> None:
        """Assert that the target equals the model after the arrived changes, in any order, and that every change is
        accounted for."""
        changes = [e.change for e in self.arrived if e.change is not None]
        table = self.plan.table
        expected, _ = fold_changes(self.plan.policy, table.column_names, table.keys, changes)
        columns = [c.name for c in self.plan.target if c.name != CDC_APPLIED_AT]
        assert to_canonical_rows(self.target.rows(self.lane), columns) == to_canonical_rows(expected, columns)
        assert self.counts.total == len(changes)

    def compare_with_log_order(self) -> None:
        """Assert that the target equals the model after all events in log order."""
        table = self.plan.table
        events = sorted((e for e in self.history.events if e.change), key=lambda e: e.change.sequence if e.change else ())
        expected, _ = fold_changes(self.plan.policy, table.column_names, table.keys, [e.change for e in events if e.change])
        # Of a repeated record, the first to arrive gives the event id.
        columns = [c.name for c in self.plan.target if c.name not in (CDC_APPLIED_AT, EVENT_ID)]
        assert to_canonical_rows(self.target.rows(self.lane), columns) == to_canonical_rows(expected, columns)

    def list_states(self) -> Any:
        """The position and event times of the lane."""
        state = self.sink.state(self.lane)
        return state and (state.position, state.max_event_time)


class SinkOutOfBand(SinkBase):
    """Changes that were rejected in the stream and are applied later."""

    @pytest.mark.parametrize("policy", POLICY_NAMES)
    def test_left_out_changes_are_applied_out_of_band(self, policy: str) -> None:
        """Random histories with some records left out, which arrive later, in any order and batches, some twice.

        In between the target equals the model of the arrived changes. At the end nothing is missing, and the
        position is the same.
        """
        require(policy in self.features().policies, f"the sink does not know policy {policy}")

        @self.for_all(2, history=scrambled_histories(("int", "composite")), seed=st.integers(0, 999))
        def check(history: History, seed: int) -> None:
            random = Random(seed)
            with self.target() as target, closing(OutOfBandRun(self, target, history, policy)) as case:
                case.check_random_events(random)

    @pytest.mark.parametrize("policy", ["scd1", "scd2"])
    def test_a_failed_out_of_band_write_is_repeated(self, policy: str) -> None:
        """A delete whose tombstone a failed attempt stored is applied by the next attempt, at any position of the
        lane."""
        require(policy in self.features().policies, f"the sink does not know policy {policy}")
        shape = replace(SIMPLE, whole_moves=True)
        partial = (Statement("write", 1), Statement("write", 1, mask=3))
        # The last delete is applied first, so that the sink looks up tombstones at all.
        final = (Statement("write", 2), Statement("delete", 2))
        history = make_history(Statement("write", 0), Statement("delete", 0), *partial, *final)
        history = replace(history, shape=shape)
        events = list(history.events)
        first, delete, lost, lacking, *last = events
        with self.target() as target, closing(OutOfBandRun(self, target, history, policy)) as case:
            case.apply_stream([first, *last], history.span(0, len(events)))
            passed = case.counts
            with pytest.raises(Fatal):
                case.apply_out_of_band([delete, lacking], fail_on_rejects)
            case.arrived, case.counts = [first, *last], passed
            again = target.open()
            case.sink.close()
            case.sink = again
            again.prepare(case.lane, case.plan)
            case.apply_out_of_band([delete, lacking])
            assert [row["_offset"] for row in case.rejects] == [lacking.offset]
            case.compare_with_model()
            assert case.counts.applied == passed.applied + 1
            case.apply_out_of_band([lost, lacking], refuse_rejects)
            case.compare_with_model()
