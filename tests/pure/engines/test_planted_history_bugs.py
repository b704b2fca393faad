"""The histories bite: each planted bug is caught by some order of arrival."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support.history_in_memory import assert_any_order, assert_random_histories

from adapters.apply import scd2_in_process
from adapters.sql import scd2
from adapters.sql.scd2 import _Scd2Steps
from adapters.sql.scd2_events import EventBranches

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unshrunk")]


def caught(check=assert_any_order, untracked=("b",), by=(AssertionError, KeyError)):
    with pytest.raises(by):
        check(range(60), untracked)


def empty_branch(monkeypatch, method):
    """A branch of the events that gives none."""
    real = getattr(EventBranches, method)

    def nothing(self, *arguments):
        return f"SELECT * FROM ({real(self, *arguments)}) AS nothing WHERE FALSE"

    monkeypatch.setattr(EventBranches, method, nothing)


@pytest.fixture
def change_statement(monkeypatch):
    """A statement with another word in it, which some statement must have."""
    found = []

    def change(name, old, new):
        real = getattr(scd2_in_process, name)

        def select(*arguments):
            text = real(*arguments)
            found.append(old in text)
            return text.replace(old, new)

        monkeypatch.setattr(scd2_in_process, name, select)

    yield change
    assert any(found), "no statement has the word"


@pytest.mark.parametrize("method", ["from_versions", "from_endings", "from_absorbed_changes", "from_truncates"])
def test_a_known_version_is_dropped(monkeypatch, method):
    empty_branch(monkeypatch, method)
    caught()


def test_changes_absorbed_by_a_version_are_dropped(monkeypatch):
    empty_branch(monkeypatch, "from_last_upserts")
    caught(assert_random_histories, ("v1", "v3"))


def test_a_version_column_that_is_never_updated(change_statement):
    change_statement("versions_select", '"_cdc__then_0" END AS "_cdc_last_seq_1"', '"_cdc_seq_1" END AS "_cdc_last_seq_1"')
    caught()


def test_an_end_that_is_null(change_statement):
    """`DELETED_AT = NULL`: a version that ended is still open."""
    change_statement("versions_select", '"_cdc__next_1" AS "_cdc_end_seq_1"', 'NULL AS "_cdc_end_seq_1"')
    caught()


def test_a_delete_that_begins_a_version(monkeypatch):
    real = _Scd2Steps.opens_condition
    monkeypatch.setattr(
        _Scd2Steps, "opens_condition", lambda self, first: real(self, first).replace("NOT (\"_op\" = 'd') AND", "")
    )
    caught(by=pa.ArrowIndexError)  # Its version ends nowhere among the rows.


def test_a_late_change_that_is_taken_for_a_duplicate(change_statement):
    change_statement("events_select", 'ORDER BY "_cdc__kind", "_place")', 'ORDER BY "_cdc__kind" DESC, "_place")')
    caught()


def test_null_that_equals_nothing(change_statement):
    change_statement("versions_select", "IS DISTINCT FROM", "<>")
    caught()


def test_values_that_were_not_sent_stay_null(change_statement):
    change_statement("events_select", 'CASE WHEN "_cdc__first" OR', 'CASE WHEN TRUE OR "_cdc__first" OR')
    caught(assert_random_histories, ())


def test_the_first_value_of_an_untracked_column(change_statement):
    change_statement("versions_select", '"_cdc__final_1" ELSE', '"_place" ELSE')
    caught()


def test_a_version_that_is_no_more_but_stays(monkeypatch):
    real = scd2.versions_select
    monkeypatch.setattr(scd2_in_process, "versions_select", lambda *given: real(*given).split("UNION ALL")[0])
    caught()


@pytest.mark.parametrize(
    "what", ['"_cdc__silent" AND', '"_cdc__opens" AND "_cdc__many" AND', 'NOT ("_op" = \'d\') AND NOT "_cdc__opens"']
)
def test_nothing_is_remembered_of(change_statement, what):
    change_statement("absorbed_select", what, f"FALSE AND {what}")
    caught()


def test_only_open_versions_are_read(monkeypatch):
    real = scd2_in_process.compute_versions

    def some(plan, kept, rows, related, absorbed, **given):
        related = related.filter(related["_cdc_end_seq_1"].is_null())
        return real(plan, kept, rows, related, absorbed, **given)

    monkeypatch.setattr(scd2_in_process, "compute_versions", some)
    caught()


def test_values_that_were_not_sent_from_a_life_before(change_statement):
    change_statement("events_select", '"_cdc__life", "_cdc__g0"', '"_cdc__g0"')
    caught(assert_random_histories, ())
