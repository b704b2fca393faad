"""Meaning of each error of the driver, as a table."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from adapters.postgres.errors import describe_refusal, is_row_refusal, is_session_lost, translate_error
from replicator.domain.errors import EnvironmentProblem, Fatal, Retryable

RETRYABLE = [
    "08006", "57P01", "57P02", "57P03", "57014", "40001", "40P01", "55P03", "53300", "53100", "53200", "25006", "58030",
    "25P02", "25P03", "25P04", "26000", "40003", "55006", "57P05", "72000",
]  # fmt: skip
ENVIRONMENT = ["28000", "28P01", "3D000", "42501", "57P04"]
FATAL = ["0A000", "42P01", "3F000", "42703", "42601", "42P05", "XX000"]
ROW = ["22001", "22003", "22P02", "22021", "22P05", "23502", "23503", "23505", "23514", "44000", "54000", "54001", "P0001"]


def make_error(state: str) -> psycopg.Error:
    try:
        return errors.lookup(state)("secret value")
    except KeyError:
        error = psycopg.Error("secret value")
        error.sqlstate = state
        return error


@pytest.mark.parametrize(
    ("state", "kind"),
    [(s, Retryable) for s in RETRYABLE] + [(s, EnvironmentProblem) for s in ENVIRONMENT] + [(s, Fatal) for s in FATAL],
)
def test_error_kind_by_sqlstate(state: str, kind: type[Exception]) -> None:
    found = translate_error(make_error(state), "testing")
    assert type(found) is kind
    assert state in str(found)
    assert "secret" not in str(found)
    assert not is_row_refusal(make_error(state))


def test_statement_that_does_not_fit_the_target_names_no_culprit() -> None:
    """The target was changed, or the statement itself is wrong."""
    found = translate_error(make_error("42703"), "testing")
    assert "Another program" not in str(found) and "If the error returns, please report it." in str(found)


@pytest.mark.parametrize("state", ROW)
def test_errors_that_refuse_a_row(state: str) -> None:
    assert is_row_refusal(make_error(state))
    assert type(translate_error(make_error(state), "testing")) is Fatal
    assert "secret" not in str(translate_error(make_error(state), "testing"))
    assert state in describe_refusal(make_error(state), []).sentence


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("connection refused", Retryable),
        ("server closed the connection unexpectedly", Retryable),
        ('FATAL:  password authentication failed for user "x"', EnvironmentProblem),
        ('FATAL:  database "x" does not exist', EnvironmentProblem),
        ("FATAL:  the database system is starting up", Retryable),
        ("FATAL:  the database system is shutting down", Retryable),
        ("FATAL:  sorry, too many clients already", Retryable),
        ("FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute", Retryable),
    ],
)
def test_error_kind_without_sqlstate(text: str, kind: type[Exception]) -> None:
    assert type(translate_error(psycopg.OperationalError(text), "connecting")) is kind


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ('connection failed: FATAL:  database "x" does not exist', "Create the database"),
        ('FATAL:  permission denied for database "x"', "Grant this role"),
        ('FATAL:  role "x" does not exist', "Correct user and password"),
    ],
)
def test_refused_connection_has_a_next_step(text: str, step: str) -> None:
    assert translate_error(psycopg.OperationalError(text), "connecting").next_step.startswith(step)


def test_misuse_of_the_driver_is_fatal() -> None:
    assert type(translate_error(psycopg.ProgrammingError("wrong"), "testing")) is Fatal


def test_lines_of_the_driver_become_sentences() -> None:
    said = "connection failed: port 1 failed: Connection refused\n\tIs the server running there?\nall failed"
    sentence = translate_error(psycopg.OperationalError(said), "testing").sentence
    assert sentence.endswith(
        "testing: connection failed: port 1 failed: Connection refused. Is the server running there? all failed."
    )


def test_unsupported_feature_is_not_explained_by_the_server_version() -> None:
    """A server that is too old is refused at the connection."""
    found = translate_error(make_error("0A000"), "testing")
    assert "15" not in found.next_step and "`into`" in found.next_step


@pytest.mark.parametrize(
    ("state", "ends"),
    [(s, True) for s in ("08006", "25006", "25P02", "25P03", "26000", "40003", "53200", "57P01", "57P05", "58030")]
    + [(s, False) for s in ("40001", "40P01", "55P03", "53100", "57014", "42P01", "0A000", "23505")],
)
def test_errors_that_end_the_session(state: str, ends: bool) -> None:
    assert is_session_lost(make_error(state)) is ends
