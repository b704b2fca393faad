"""Row transforms of lanes, as the application sees them."""

from __future__ import annotations

from dataclasses import replace

from support.application_world import QUICK, ReplicatedTuples
from support.histories_of_items import make_change
from support.tuple_engine import TupleEngine

from replicator.domain.errors import ExitCode
from replicator.domain.policy.plan import Counts
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.components import TableRules

IGNORING = RowTransforms(without_deletes=True)
LOG = [
    make_change(0, "c", 1),
    make_change(1, "c", 13),
    make_change(2, "c", 2),
    make_change(3, "d", 1),
    make_change(4, "u", 2),
]
"""The engine of these tests has no place for the key 13."""


class Shaped(ReplicatedTuples):
    """Lanes that ignore deletes, but for the lane `a`."""

    def rules(self, table):
        rules = super().rules(table)
        if rules is None:
            return None
        lanes = tuple(lane if lane.sink == "a" else replace(lane, row_transforms=IGNORING) for lane in rules.lanes)
        return TableRules(lanes, rules.keys, rules.event_logs)


def world(log=LOG, **more):
    lanes = {"public.items": [("a", "scd1"), ("b", "scd1"), ("c", "scd1")]}
    return Shaped(list(log), lanes=lanes, logs=(), **more)


def test_each_lane_has_its_own_rejects_and_counts():
    some = world()
    running = some.start()
    assert running.once() is ExitCode.OK
    assert {(key, letter.stage, letter.code) for key, letter in some.letters.items()} == {
        (("t-0-1", "b.items"), "shape", "SEQUENCE"),
        (("t-0-1", "c.items"), "shape", "SEQUENCE"),
    }
    assert all(letter.record == repr(LOG[1]).encode() for letter in some.letters.values())
    assert set(some.targets["a.items"].rows) == {2, 13}
    assert set(some.targets["b.items"].rows) == set(some.targets["c.items"].rows) == {1, 2}
    counts = {run.lane.id: run.counts for run in running.lanes.list_runs()}
    assert counts["b.items"] == counts["c.items"] == Counts(applied=2, folded=1, filtered=1, rejected=1)
    assert counts["a.items"].total == len(LOG) and not counts["a.items"].filtered


def test_lanes_with_equal_transforms_share_the_transformed_rows(monkeypatch):
    made = []
    shape = TupleEngine.transform_rows

    def count_transform(self, changes, plan):
        made.append(len(changes))
        return shape(self, changes, plan)

    monkeypatch.setattr(TupleEngine, "transform_rows", count_transform)
    assert world().start().once() is ExitCode.OK
    assert made == [len(LOG)]


def test_dead_letters_are_durable_before_any_position_passes_them():
    for cuts in ((1000,), (1,), (2,)):
        some = world(cuts=cuts)
        running = some.start()
        for name in ("b", "c"):

            def check(writes, name=name, some=some):
                for write in writes:
                    for partition, end in write.span.end.items():
                        if write.span.start[partition] <= 1 < end:
                            assert ("t-0-1", f"{name}.items") in some.letters

            running.sinks[name].before_apply = check
        assert running.once() is ExitCode.OK
        assert len(some.letters) == 2


def test_failing_dead_letter_store_ends_the_program_before_any_commit():
    some = world(LOG[1:2])
    some.log[0] = replace(LOG[1], offset=0)
    running = some.start()
    running.letters.fail = lambda: OSError("disk full")
    assert running.once() is ExitCode.RUNTIME
    assert "dead-letter store" in running.supervisor.problem.sentence
    assert some.targets.get("b.items") is None or some.targets["b.items"].state is None
    assert some.start().once() is ExitCode.OK
    assert len(some.letters) == 2


def test_rejects_of_transforms_count_for_max_rejects():
    some = world(options=replace(QUICK, max_rejects=1))
    assert some.start().once() is ExitCode.REJECTS
    some.options = replace(QUICK, max_rejects=2)
    assert world(options=some.options).start().once() is ExitCode.OK


def test_batch_without_remaining_rows_advances_the_position():
    some = world([make_change(0, "d", 1), make_change(1, "c", 13)])
    running = some.start()
    assert running.once() is ExitCode.OK
    assert not some.targets["b.items"].rows
    assert {offset for _, offset in some.targets["b.items"].state.position.items()} == {2}
    again = some.start()
    assert again.once() is ExitCode.OK
    assert all(run.counts.total == 0 for run in again.lanes.list_runs())
