"""The tests of histories notice planted bugs."""

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
def test_dropped_version_is_noticed(monkeypatch, method):
    empty_branch(monkeypatch, method)
    caught()


def test_dropped_absorbed_changes_are_noticed(monkeypatch):
    empty_branch(monkeypatch, "from_last_upserts")
    caught(assert_random_histories, ("v1", "v3"))


def test_version_column_that_is_never_updated_is_noticed(change_statement):
    change_statement("versions_select", '"_cdc__then_0" END AS "_cdc_last_seq_1"', '"_cdc_seq_1" END AS "_cdc_last_seq_1"')
    caught()


def test_null_end_of_a_version_is_noticed(change_statement):
    """`DELETED_AT = NULL`: an ended version stays open."""
    change_statement("versions_select", '"_cdc__next_1" AS "_cdc_end_seq_1"', 'NULL AS "_cdc_end_seq_1"')
    caught()


def test_version_opened_by_a_delete_is_noticed(monkeypatch):
    real = _Scd2Steps.opens_condition
    monkeypatch.setattr(
        _Scd2Steps, "opens_condition", lambda self, first: real(self, first).replace("NOT (\"_op\" = 'd') AND", "")
    )
    caught(by=pa.ArrowIndexError)  # Its version ends nowhere among the rows.


def test_late_change_counted_as_duplicate_is_noticed(change_statement):
    change_statement("events_select", 'ORDER BY "_cdc__kind", "_place")', 'ORDER BY "_cdc__kind" DESC, "_place")')
    caught()


def test_null_compared_with_sql_equality_is_noticed(change_statement):
    change_statement("versions_select", "IS DISTINCT FROM", "<>")
    caught()


def test_unchanged_values_stored_as_null_are_noticed(change_statement):
    change_statement("events_select", 'CASE WHEN "_cdc__first" OR', 'CASE WHEN TRUE OR "_cdc__first" OR')
    caught(assert_random_histories, ())


def test_first_instead_of_last_untracked_value_is_noticed(change_statement):
    change_statement("versions_select", '"_cdc__final_1" ELSE', '"_place" ELSE')
    caught()


def test_obsolete_version_that_stays_is_noticed(monkeypatch):
    real = scd2.versions_select
    monkeypatch.setattr(scd2_in_process, "versions_select", lambda *given: real(*given).split("UNION ALL")[0])
    caught()


@pytest.mark.parametrize(
    "what", ['"_cdc__silent" AND', '"_cdc__opens" AND "_cdc__many" AND', 'NOT ("_op" = \'d\') AND NOT "_cdc__opens"']
)
def test_absorbed_changes_that_are_not_stored_are_noticed(change_statement, what):
    change_statement("absorbed_select", what, f"FALSE AND {what}")
    caught()


def test_ignored_closed_versions_are_noticed(monkeypatch):
    real = scd2_in_process.compute_versions

    def some(plan, kept, rows, related, absorbed, **given):
        related = related.filter(related["_cdc_end_seq_1"].is_null())
        return real(plan, kept, rows, related, absorbed, **given)

    monkeypatch.setattr(scd2_in_process, "compute_versions", some)
    caught()


def test_unchanged_values_of_an_earlier_row_are_noticed(change_statement):
    change_statement("events_select", '"_cdc__life", "_cdc__g0"', '"_cdc__g0"')
    caught(assert_random_histories, ())
