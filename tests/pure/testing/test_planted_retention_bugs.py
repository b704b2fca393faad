"""The suites bite, where deleted rows stay for a time: each planted bug is caught by the test that is there to catch it."""

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


def test_nothing_is_planted():
    for name in (STORY, HISTORIES):
        getattr(Suite(), name)()


@pytest.mark.long
def test_living_rows_that_go(monkeypatch):
    def by_age_alone(plan, row, gone):
        return plain_plan.get_sequence(plan, row) <= gone.max_sequence

    plant_retention_rule(monkeypatch, by_age_alone)
    assert_caught(STORY, HISTORIES)


def test_rows_above_the_purged_sequence_that_are_removed(monkeypatch):
    plant_retention_rule(monkeypatch, lambda plan, row, gone: row[CDC_DELETED])
    assert_caught(STORY)


def test_rows_that_never_go(monkeypatch):
    plant_retention_rule(monkeypatch, lambda plan, row, gone: False)
    assert_caught(STORY)


def test_rows_that_a_truncate_marked_and_that_go_by_their_own_sequence(monkeypatch):
    plant_retention_rule(
        monkeypatch, lambda plan, row, gone: row[CDC_DELETED] and plain_plan.get_sequence(plan, row) <= gone.max_sequence
    )
    assert_caught(STORY)


def test_rows_that_a_truncate_marked_and_that_never_go(monkeypatch):
    right = plain_plan._is_purged
    plant_retention_rule(
        monkeypatch, lambda plan, row, gone: row[CDC_DELETED] and row["_cdc_op"] == "d" and right(plan, row, gone)
    )
    assert_caught(STORY)


def test_a_truncate_that_is_not_counted(monkeypatch):
    """Where no row is deleted otherwise, what it marked never goes."""
    monkeypatch.setattr(late_changes, "find_highest", lambda first, *others: first)
    assert_caught(STORY)


def test_a_purged_sequence_that_rises_by_deletes_alone(monkeypatch):
    right = fakes.advance_purge

    def deaf(plan, state, at):
        after = right(plan, state, at)
        old, new = state.purged_up_to, after.purged_up_to
        return state if old and new and new.max_sequence == old.max_sequence else after

    monkeypatch.setattr(fakes, "advance_purge", deaf)
    assert_caught("test_what_a_lower_truncate_marked_ages_out")
