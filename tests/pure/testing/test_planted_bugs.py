"""The published suites notice planted bugs."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.overrides import override

from adapters.engines.local import LocalEngine, LocalFrames
from replicator.domain.errors import DataLoss
from replicator.domain.expr import AllOf
from replicator.domain.policy.plan import Clause, LaneState
from replicator.domain.policy.policies import IS_DELETE, NOT_DELETE, plan_for
from replicator.domain.position import Position
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.rows import NO_ROW_TRANSFORMS
from replicator.testing import fakes, plain_plan
from replicator.testing.delivery import DeliveryRun, assert_equals_model
from replicator.testing.engine_contract import EngineContract
from replicator.testing.fakes import FakeSink, FakeTarget
from replicator.testing.histories import make_random_history
from replicator.testing.sink_contract import SinkContract
from replicator.testing.sink_row_transforms import LaneStream

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unshrunk")]


class Suite(SinkContract):
    sink = FakeSink

    def new_target(self):
        sink = self.sink
        return override(FakeTarget, open=lambda self: sink(self.store))()

    def new_engine(self):
        return LocalEngine()


Suite.__test__ = False


def assert_caught(suite, *names):
    """Every one of these tests of the suite fails."""
    for name in names:
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            getattr(suite(), name)()


def caught_by_histories(policy="scd1", engine=LocalEngine, plans=plan_for):
    """How many of some random histories it takes; fails when all of them end as the model says."""
    for seed in range(200):
        history = make_random_history(seed, 40, keys=("int", "composite"))
        history = replace(history, shape=replace(history.shape, unseen=False))
        delivering = DeliveryRun(engine(), FakeTarget(), history, policy, plans)
        try:
            delivering.run()
            assert_equals_model(delivering)
        except (AssertionError, DataLoss):
            return
    pytest.fail("no history caught it")


def plant_plan_change(change):
    """`plan_for`, with a change to every plan."""
    return lambda policy, table: change(plan_for(policy, table))


def without_newer(plan):
    _, update, insert = plan.clauses
    clauses = (Clause(True, IS_DELETE, "delete"), Clause(True, NOT_DELETE, "update", update.assign), insert)
    return replace(plan, clauses=clauses)


def test_dropped_guard_is_noticed(monkeypatch):
    monkeypatch.setattr(plain_plan, "_check_stale", lambda *_, **__: None)
    caught_by_histories(plans=plant_plan_change(without_newer))


def test_insert_by_an_unmatched_delete_is_noticed():
    def change(plan):
        clauses = tuple(c if c.matched else replace(c, when=AllOf(())) for c in plan.clauses)
        return replace(plan, clauses=clauses)

    caught_by_histories(plans=plant_plan_change(change))


def test_missing_cdc_column_in_an_update_is_noticed():
    def change(plan):
        kept = {c: tuple(a for a in c.assign if a[0] != "_cdc_seq_2") for c in plan.clauses}
        return replace(plan, clauses=tuple(replace(c, assign=kept[c]) if c.action == "update" else c for c in plan.clauses))

    caught_by_histories(plans=plant_plan_change(change))


def test_truncate_that_clears_nothing_is_noticed(monkeypatch):
    monkeypatch.setattr(plain_plan, "_truncate_rows", lambda *_: plain_plan.APPLIED)
    caught_by_histories()


def test_lost_tombstone_is_noticed():
    def forgetful(plan):
        return replace(plan, reconcile=replace(plan.reconcile, uses_tombstones=False))

    caught_by_histories(plans=plant_plan_change(forgetful))


def test_appended_duplicate_is_noticed(monkeypatch):
    def never(self, names, values):
        return None

    monkeypatch.setattr(plain_plan.PlainTarget, "find", never)
    caught_by_histories("append")


def test_position_that_is_not_advanced_is_noticed(monkeypatch):
    advanced = fakes.advance_state

    def stuck(state, write, target):
        after = advanced(state, write, target)
        return after if write.folded.rows else replace(after, position=state.position)

    monkeypatch.setattr(fakes, "advance_state", stuck)
    assert_caught(Suite, "test_empty_write_advances_position")


def test_state_committed_without_its_rows_is_noticed(monkeypatch):
    monkeypatch.setattr(fakes, "advance_state", lambda state, write, target: state)
    assert_caught(Suite, "test_state_is_committed_with_the_rows")


def test_accepted_gap_is_noticed(monkeypatch):
    monkeypatch.setattr(fakes, "refuse_gap", lambda write, position: None)
    assert_caught(Suite, "test_gap_is_refused", "test_apply_is_atomic_across_lanes")


class TwiceSink(FakeSink):
    """Applies everything twice, as if it had no position and no guard."""

    def apply(self, writes, reject):
        applied = super().apply(writes, reject)
        for write in writes:
            rows = self.store.lanes[write.lane.id].target.rows
            rows += [dict(row) for row in rows]
        return applied


def test_write_applied_twice_is_noticed():
    class Twice(Suite):
        sink = TwiceSink

    assert_caught(Twice, "test_fail_after_apply_then_retry", "test_redelivery", "test_redelivery_under_append")


class EarlySink(FakeSink):
    """Commits before it hands over what it rejects."""

    def apply(self, writes, reject):
        late = []
        applied = super().apply(writes, lambda lane, rows: late.append((lane, rows)))
        for lane, rows in late:
            reject(lane, rows)
        return applied


def test_rejects_stored_after_the_commit_are_noticed():
    class Early(Suite):
        sink = EarlySink

    assert_caught(Early, "test_rejects_are_stored_before_the_commit")


class SilentSink(FakeSink):
    """Drops what it cannot apply."""

    def apply(self, writes, reject):
        return super().apply(writes, lambda lane, rows: None)


def test_dropped_rejects_are_noticed():
    class Silent(Suite):
        sink = SilentSink

    assert_caught(Silent, "test_rejects_are_stored_before_the_commit")


class UnfencedSink(FakeSink):
    def _refuse_fenced(self, lane_id):
        pass


def test_two_writers_of_one_lane_are_noticed():
    class Unfenced(Suite):
        sink = UnfencedSink

    assert_caught(Unfenced, "test_second_instance_is_fenced")


class LazyResetSink(FakeSink):
    def reset(self, lane):
        self.store.lanes[lane.id].state = LaneState()


def test_reset_that_keeps_rows_is_noticed():
    class Lazy(Suite):
        sink = LazyResetSink

    assert_caught(Lazy, "test_reset_removes_all_rows")


def test_tombstones_purged_too_early_are_noticed(monkeypatch):
    monkeypatch.setattr(plain_plan.PlainTarget, "purge_tombstones", lambda self, high: self.deletes.clear())
    assert_caught(Suite, "test_tombstones_are_purged")


def test_tombstones_that_are_never_purged_are_noticed(monkeypatch):
    monkeypatch.setattr(plain_plan.PlainTarget, "purge_tombstones", lambda self, high: None)
    assert_caught(Suite, "test_tombstones_are_purged")


@pytest.mark.long
def test_applied_late_changes_are_noticed(monkeypatch):
    monkeypatch.setattr(plain_plan, "_is_late", lambda *_: False)
    assert_caught(Suite, "test_tombstones_are_purged", "test_histories_with_purged_tombstones_equal_the_model")


def test_late_changes_rejected_despite_a_stored_delete_are_noticed(monkeypatch):
    def hasty(plan, row, related, lateness):
        there = related.find(plan.table.keys, tuple(row[k] for k in plan.table.keys))
        return there is None and plain_plan.get_sequence(plan, row) <= lateness.max_purged

    monkeypatch.setattr(plain_plan, "_is_late", hasty)
    assert_caught(Suite, "test_tombstones_are_purged")


def test_purged_sequence_that_is_not_stored_is_noticed(monkeypatch):
    advanced = fakes.advance_state
    monkeypatch.setattr(fakes, "advance_state", lambda *write: replace(advanced(*write), purged_up_to=None))
    assert_caught(Suite, "test_tombstones_are_purged", "test_the_purged_sequence_is_stored")


def test_purged_sequence_that_decreases_is_noticed(monkeypatch):
    """Purged deletes stay purged, also if all later deletes are kept for ever."""
    forgetting = fakes.advance_purge

    def recompute_horizon(plan, state, at):
        return forgetting(plan, replace(state, purged_up_to=None), at)

    monkeypatch.setattr(fakes, "advance_purge", recompute_horizon)
    assert_caught(Suite, "test_the_purged_sequence_is_stored")


def test_watermark_that_restarts_with_each_batch_is_noticed(monkeypatch):
    monkeypatch.setattr(fakes, "advance_event_times", lambda plan, facts, state: facts.max_event_times)
    assert_caught(Suite, "test_late_changes_are_rejected")


def test_watermark_that_is_never_removed_is_noticed(monkeypatch):
    def advance(plan, facts, state):
        return {**state.max_event_time, **facts.max_event_times}

    monkeypatch.setattr(fakes, "advance_event_times", advance)
    assert_caught(Suite, "test_a_watermark_may_change")


def test_watermark_after_dropped_duplicates_is_noticed():
    """A fold that drops duplicates cannot know whether the first change is late."""

    def fold(self, changes, plan):
        return LocalEngine.fold(self, changes, replace(plan, watermark=None))

    engine = make_broken_engine(fold=fold)
    assert_caught(suite_of(engine), "test_fold_under_a_watermark_keeps_every_change")
    assert_caught(override(Suite, new_engine=lambda self: engine()), "test_late_changes_are_rejected")


class EngineSuite(EngineContract):
    engine = LocalEngine

    def new_engine(self):
        return self.engine()


EngineSuite.__test__ = False


def make_broken_engine(**methods):
    return override(LocalEngine, **methods)


def make_engine_of_broken_frames(**methods):
    class BrokenFramesEngine(LocalEngine):
        def __init__(self, options=None):
            super().__init__(options)
            self.frames = override(LocalFrames, **methods)()

    return BrokenFramesEngine


def suite_of(engine):
    return override(EngineSuite, engine=engine)


def test_fold_without_the_delete_in_the_middle_is_noticed():
    """Deleted values return if the next image is partial: `_reset` prevents this."""

    def fold(self, changes, plan):
        folded = LocalEngine.fold(self, changes, plan)
        place = folded.frame.column_names.index("_reset")
        never = pa.repeat(pa.scalar(False), folded.frame.num_rows)
        return replace(folded, frame=folded.frame.set_column(place, "_reset", never))

    assert_caught(suite_of(make_broken_engine(fold=fold)), "test_fold_sets_reset_after_a_delete_or_truncate")


def test_fold_that_keeps_the_first_change_is_noticed():
    def fold(self, changes, plan):
        return LocalEngine.fold(self, changes.take(pa.array(range(changes.num_rows)[::-1], pa.int64())), plan)

    caught_by_histories(engine=make_broken_engine(fold=fold))


def test_separate_merges_per_operation_are_noticed():
    """A row that was deleted and came back in one batch is gone, for its delete is written last; it is the lack of
    the row that is caught, not some column of it."""

    def fold(self, changes, plan):
        kinds = pc.index_in(changes["_op"], value_set=pa.array(["c", "r", "u", "d", "t"]))
        last = changes.take(pc.sort_indices(pa.table({"kind": kinds}), sort_keys=[("kind", "ascending")]))
        in_turn = [n for n in changes.column_names if n.startswith("_seq_")]
        for name in in_turn:
            last = last.set_column(last.column_names.index(name), name, changes[name])
        return LocalEngine.fold(self, last, plan)

    table = TableSpec("public.items", (Column("id", pa.int64()), Column("v", pa.string())), ("id",), 2)
    for engine, left in ((LocalEngine, {1: "back"}), (make_broken_engine(fold=fold), {})):
        suite = override(Suite, new_engine=lambda self, engine=engine: engine())
        with suite().target() as target:
            lines = LaneStream(suite(), target, table, NO_ROW_TRANSFORMS)
            lines.send([{"id": 1, "v": "a"}, {"id": 1, "v": "b", "op": "u"}, {"id": 1, "op": "d"}, {"id": 1, "v": "back"}])
            assert lines.by_id("v") == left
    caught_by_histories(engine=make_broken_engine(fold=fold))


def test_fold_with_wrong_counts_is_noticed():
    def fold(self, changes, plan):
        folded = LocalEngine.fold(self, changes, plan)
        return replace(folded, counts=type(folded.counts)())

    caught_by_histories(engine=make_broken_engine(fold=fold))
    assert_caught(suite_of(make_broken_engine(fold=fold)), "test_fold_returns_the_facts_of_the_batch")


def test_stream_not_split_at_key_changes_is_noticed():
    engine = make_engine_of_broken_frames(segments=lambda self, changes, table: [changes])
    caught_by_histories(engine=engine)
    assert_caught(suite_of(engine), "test_segments_keep_the_old_row_readable")


def test_key_change_that_is_not_held_together_is_noticed():
    engine = make_engine_of_broken_frames(find_open_key_changes=lambda self, changes: Position())
    caught_by_histories(engine=engine)
    assert_caught(suite_of(engine), "test_open_key_changes_are_found")
