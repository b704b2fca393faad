"""The suites notice planted bugs of tombstone retention with soft deletes."""

import pytest

from adapters.engines.local import LocalEngine
from replicator.domain.policy import late_changes
from replicator.domain.policy.plan import CDC_DELETED
from replicator.testing import fakes, plain_plan
from replicator.testing.fakes import FakeTarget
from replicator.testing.sink_contract import SinkContract

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unshrunk")]
STORY, HISTORIES = "test_deleted_rows_age_out", "test_histories_in_which_deleted_rows_age_out_equal_the_model"


class Suite(SinkContract):
    def new_target(self):
        return FakeTarget()

    def new_engine(self):
        return LocalEngine()


Suite.__test__ = False


def assert_caught(*names):
    """Every one of these tests of the suite fails."""
    for name in names:
        with pytest.raises((AssertionError, KeyError, pytest.fail.Exception)):
            getattr(Suite(), name)()


def plant_retention_rule(monkeypatch, is_forgotten):
    """Another rule by which rows go."""

    def forget(self, plan, gone):
        self.rows = [row for row in self.rows if not is_forgotten(plan, row, gone)]

    monkeypatch.setattr(plain_plan.PlainTarget, "purge_rows", forget)


def test_suite_passes_without_a_bug():
    for name in (STORY, HISTORIES):
        getattr(Suite(), name)()


@pytest.mark.long
def test_removed_live_rows_are_noticed(monkeypatch):
    def by_age_alone(plan, row, gone):
        return plain_plan.get_sequence(plan, row) <= gone.max_sequence

    plant_retention_rule(monkeypatch, by_age_alone)
    assert_caught(STORY, HISTORIES)


def test_rows_removed_too_early_are_noticed(monkeypatch):
    plant_retention_rule(monkeypatch, lambda plan, row, gone: row[CDC_DELETED])
    assert_caught(STORY)


def test_rows_that_are_never_removed_are_noticed(monkeypatch):
    plant_retention_rule(monkeypatch, lambda plan, row, gone: False)
    assert_caught(STORY)


def test_truncated_rows_removed_by_their_own_sequence_are_noticed(monkeypatch):
    plant_retention_rule(
        monkeypatch, lambda plan, row, gone: row[CDC_DELETED] and plain_plan.get_sequence(plan, row) <= gone.max_sequence
    )
    assert_caught(STORY)


def test_truncated_rows_that_are_never_removed_are_noticed(monkeypatch):
    right = plain_plan._is_purged
    plant_retention_rule(
        monkeypatch, lambda plan, row, gone: row[CDC_DELETED] and row["_cdc_op"] == "d" and right(plan, row, gone)
    )
    assert_caught(STORY)


def test_truncate_without_a_horizon_is_noticed(monkeypatch):
    """Without other deletes, the rows that it flagged would never be removed."""
    monkeypatch.setattr(late_changes, "find_highest", lambda first, *others: first)
    assert_caught(STORY)


def test_purged_sequence_raised_by_deletes_only_is_noticed(monkeypatch):
    right = fakes.advance_purge

    def deaf(plan, state, at):
        after = right(plan, state, at)
        old, new = state.purged_up_to, after.purged_up_to
        return state if old and new and new.max_sequence == old.max_sequence else after

    monkeypatch.setattr(fakes, "advance_purge", deaf)
    assert_caught("test_rows_marked_by_a_lower_truncate_age_out")
