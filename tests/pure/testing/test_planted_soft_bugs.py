"""The suites notice planted bugs of soft deletes."""

from dataclasses import replace

import pytest

from adapters.arrow import key_change
from adapters.engines import local as folding
from adapters.engines.local import LocalEngine
from adapters.transforms import row_transforms
from replicator.domain.expr import AllOf, Lit, source
from replicator.domain.policy.plan import CDC_DELETED, CDC_DELETED_AT
from replicator.testing import plain_plan
from replicator.testing.delivery import DeliveryRun, assert_equals_model
from replicator.testing.fakes import FakeTarget
from replicator.testing.histories import make_random_history
from replicator.testing.transform_cases import CASES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unshrunk")]
SOFT, BY_TEXT, ORDERED = "with soft deletes", "with soft deletes by text", "with soft deletes, in the order of a column"


def caught(plan=None, name=SOFT):
    """One of some random histories ends otherwise than the model says, or does not end; fails when all of them agree."""
    case = CASES[name]
    for seed in range(120):
        history = make_random_history(seed, 40, keys=("int", "composite"), first=case.first_types)
        if case.in_order:
            history = replace(history, shape=replace(history.shape, partitions=1))
        delivering = DeliveryRun(LocalEngine(), FakeTarget(), history, "scd1", plan or case.plan, case.wanted)
        try:
            delivering.run()
            assert_equals_model(delivering)
        except (AssertionError, KeyError):
            return
    pytest.fail("no history caught it")


def with_clauses(change):
    """The plan with other clauses, made of those for a delete without values, for other changes, for rows that are new."""

    def plan(policy, table):
        right = CASES[SOFT].plan(policy, table)
        return replace(right, clauses=change(*right.clauses))

    return plan


def without_assignment(clause, name):
    return replace(clause, assign=tuple((n, value) for n, value in clause.assign if n != name))


def test_null_time_of_a_delete_is_noticed():
    caught(with_clauses(lambda mark, update, insert: (without_assignment(mark, CDC_DELETED_AT), update, insert)))


def test_restored_row_that_stays_flagged_is_noticed():
    caught(with_clauses(lambda mark, update, insert: (mark, without_assignment(update, CDC_DELETED), insert)))


def test_restored_row_with_its_delete_time_is_noticed():
    caught(with_clauses(lambda mark, update, insert: (mark, without_assignment(update, CDC_DELETED_AT), insert)))


def test_inserted_delete_of_a_missing_row_is_noticed():
    def inserting(mark, update, insert):
        assign = tuple((n, Lit(True) if n == CDC_DELETED else value) for n, value in insert.assign)
        return mark, update, replace(insert, when=AllOf(()), assign=assign)

    caught(with_clauses(inserting))


def test_delete_that_writes_its_image_is_noticed():
    def overwriting(mark, update, insert):
        assign = (*((n, source(n)) for n, _ in update.assign if not n.startswith("_")), *mark.assign)
        return replace(mark, assign=assign), update, insert

    caught(with_clauses(overwriting))


def test_truncate_that_removes_rows_is_noticed(monkeypatch):
    def removing(plan, target, row):
        verdict = right(plan, target, row)
        target.rows = [old for old in target.rows if plain_plan.get_sequence(plan, old) >= target.truncated_at]
        return verdict

    right = plain_plan._truncate_rows
    monkeypatch.setattr(plain_plan, "_truncate_rows", removing)
    caught()


def test_values_taken_from_a_flagged_row_are_noticed(monkeypatch):
    def giving(plan, folded, related):
        keys = folded.get("_moved_from") or folded
        return None if folded["_reset"] else related.find(plan.table.keys, tuple(keys[k] for k in plan.table.keys))

    monkeypatch.setattr(plain_plan, "_find_base", giving)
    caught(name=BY_TEXT)


def test_delete_that_drops_values_of_its_batch_is_noticed(monkeypatch):
    monkeypatch.setattr(folding, "_list_missing_names", lambda rows, plan: [])
    monkeypatch.setattr(folding, "_complete_rows", lambda rows, kept, sent, names, plan: rows)
    caught()


def test_truncate_folded_with_its_rows_is_noticed(monkeypatch):
    right = key_change._to_key_change
    monkeypatch.setattr(key_change, "_to_key_change", lambda *told, **more: right(*told, **more)._replace(first=False))
    caught()


def test_delete_folded_with_possibly_stale_changes_is_noticed(monkeypatch):
    right = key_change._to_key_change

    def join_rows(*told, **more):
        touch = right(*told, **more)
        return touch if touch.op == "t" else touch._replace(first=False)

    monkeypatch.setattr(key_change, "_to_key_change", join_rows)
    caught(name=ORDERED)


def test_delete_that_sends_its_image_is_noticed(monkeypatch):
    monkeypatch.setattr(row_transforms, "_clear_delete_values", lambda ops, leaves, lists: lists)
    caught()
