"""Classifies errors of the PostgreSQL driver: retry, stop, or reject a row.

Sentences never quote the server's message for data errors, because it contains values of the row. SQLSTATE
codes are those of the PostgreSQL documentation, appendix A.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import psycopg

from replicator.domain.errors import EnvironmentProblem, Fatal, Reject, RejectCode, ReplicatorError, Retryable

PASSES = {
    "08": "the connection broke, or could not be made",
    "25006": "the server was a standby, or read-only, when the session began",
    "25P02": "the transaction had failed, and was not ended",
    "25P03": "the session was idle in its transaction for too long",
    "25P04": "the transaction exceeded its timeout",
    "26": "a pooler, or DISCARD ALL, took the prepared statements of the session",
    "40": "a deadlock, a serialization failure, or a conflict with the recovery of a standby",
    "53": "the server has no more disk, memory or connections",
    "55006": "another session is using the object",
    "55P03": "a lock was not available in time",
    "57014": "the statement was cancelled, or exceeded its timeout",
    "57P01": "the server shuts down, or an administrator ended the session",
    "57P02": "another process of the server crashed",
    "57P03": "the server starts, or shuts down",
    "57P05": "the session was idle for too long",
    "58": "the server could not read or write a file",
    "72": "the transaction read with a snapshot that is too old by now",
}
"""Temporary errors: the SQLSTATE or its first characters, and the reason."""

RELIEF = {
    "53100": "Free space on the server's disk.",
    "55P03": (
        "Wait until the session that holds the lock ends, or end it with pg_terminate_backend(pid). It is one of these: "
        "`SELECT pid, relation::regclass, mode, query FROM pg_locks JOIN pg_stat_activity USING (pid) "
        "WHERE granted AND datname = current_database()`."
    ),
}
"""Next steps for some of them."""

ENDS_SESSION = {
    "08": "it is unknown what the server still sends",
    "25": "the session is not in the state in which this program left it; its defaults may belong to a standby",
    "26": "a statement that the driver has prepared does not exist",
    "40003": "it is unknown if the statement was executed",
    "53200": "the server frees the memory of a session when it ends",
    "57P": "the server has ended the session, or is about to",
    "58": "files and locks of the session may be gone",
}
"""After these errors another session is opened, because the old one would fail again.

Its locks are acquired again, and the epoch shows whether another instance wrote meanwhile (`LaneOwnership`).
"""

STALE_PLAN = "RevalidateCachedQuery"
"""The server function that refuses a prepared statement after a change of columns. Its code (0A000) has other
uses, too."""

ROW = ("22", "23", "44", "54000", "54001", "P0001")
"""Data exceptions, constraints, a view's condition, a too large index row, JSON with too many levels, RAISE in a
trigger. The cause is a row, not the server."""

BETWEEN_ROWS = frozenset({"23503", "23505", "23P01"})
"""Constraints between rows: foreign keys, unique and exclusion constraints. After changes of other rows the row
may be accepted."""

ENVIRONMENT = {
    "28": "Correct user and password in `dsn`, or let this role log in (pg_hba.conf).",
    "3D": "Create the database, or correct its name in `dsn`.",
    "42501": "Grant this role the right that the sentence names. For a target, `replicator doctor` shows the statement. If "
    "the role must be the owner, run `ALTER TABLE ... OWNER TO` this role, or start once as the owner of the tables: "
    "docs/how-to/secure-a-deployment.md.",
    "57P04": "The database was dropped: create it again, then `replicator lanes resync`.",
}
DEPENDED_ON = "2BP01"
STRUCTURE = {
    "54011": "Leave some out with `column_list` or `except_column_list`.",
    DEPENDED_ON: "Drop these first, then repeat.",
    "42P01": "The target was removed: start again to have it created, after `replicator lanes resync`.",
    "3F": "The schema was removed: start again to have it created, after `replicator lanes resync`.",
    "42P05": "Connect without the pooler, or set its pool_mode to session.",
    "0A": "The server cannot do this with the target as it is: write to an ordinary table, with another name in `into`.",
    "42": "The target is not as expected: start again, so that it is read again. If the error returns, please report it.",
}
STARTING = re.compile(r"starting up|shutting down|recovery mode|connection slots|too many|not yet accepting", re.I)

REFUSED = (
    (re.compile(r'FATAL: +database ".*" does not exist'), "3D"),
    (re.compile("FATAL: +permission denied for"), "42501"),
)
"""Texts of errors without a SQLSTATE, as the driver raises them before there is a connection."""

UNTRUSTED = re.compile(r"certificate|private key file|tlsv?1\S* alert|does not support SSL|SSL was required", re.I)
"""No connection: one side does not trust the other, or one requires TLS and the other has none."""
TRUST = (
    "Check sslmode, sslrootcert, sslcert and sslkey in `dsn`, that the server's certificate names the host in it, and that "
    "no certificate has expired."
)


def is_row_refusal(error: BaseException) -> bool:
    """True when the database refuses a value or a row, so that other rows can still be applied."""
    state = getattr(error, "sqlstate", None)
    return isinstance(error, psycopg.Error) and state is not None and state.startswith(ROW)


def is_session_lost(error: psycopg.Error) -> bool:
    """True when the session of the error cannot be used again."""
    return has_stale_plan(error) or (error.sqlstate or "08").startswith(tuple(ENDS_SESSION))


def has_stale_plan(error: psycopg.Error) -> bool:
    """True when a prepared statement is older than a change of its table."""
    return error.diag.source_function == STALE_PLAN


def is_waiting_for_rows(error: psycopg.Error) -> bool:
    """True when the row may be accepted after changes of other rows."""
    return error.sqlstate in BETWEEN_ROWS


def translate_error(error: psycopg.Error, doing: str) -> ReplicatorError:
    """`error`, raised while `doing` (as in "applying lane pg.orders"), as an error of this program."""
    state = error.sqlstate
    if state is None:
        return _translate_connection_error(error, doing)
    if state.startswith(ROW):
        return Fatal(f"While {doing}: {describe_refusal(error, ()).sentence}.")
    message = error.diag.message_primary or describe_error_class(error)
    if state == DEPENDED_ON and error.diag.message_detail:
        message += f": {_to_one_line(error.diag.message_detail)}"  # Names of objects, not values of rows.
    sentence = f"PostgreSQL said while {doing}: {message} (SQLSTATE {state})."
    if state.startswith(tuple(PASSES)) or has_stale_plan(error):
        return Retryable(sentence, next_step=RELIEF.get(state, ""))
    for table, kind in ((ENVIRONMENT, EnvironmentProblem), (STRUCTURE, Fatal)):
        for prefix, step in table.items():
            if state.startswith(prefix):
                return kind(sentence, next_step=step)
    return Fatal(sentence)


def _translate_connection_error(error: psycopg.Error, doing: str) -> ReplicatorError:
    """The connection broke or was never made. If the server refused it, this is an environment problem."""
    text = _to_one_line(str(error))
    if UNTRUSTED.search(text):
        return EnvironmentProblem(f"PostgreSQL is not trusted while {doing}: {text}", next_step=TRUST)
    is_refused = ("FATAL:" in text or "no password supplied" in text) and not STARTING.search(text)
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not is_refused:
        return Retryable(f"PostgreSQL is not reachable while {doing}: {text}")
    if is_refused:
        state = next((state for words, state in REFUSED if words.search(text)), "28")
        return EnvironmentProblem(f"PostgreSQL refused the connection while {doing}: {text}", next_step=ENVIRONMENT[state])
    return Fatal(f"The PostgreSQL driver failed while {doing}: {type(error).__name__}.")


def _to_one_line(text: str) -> str:
    """The driver's lines as sentences, each with a full stop."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return " ".join(line if line.endswith((".", "?", "!", ":")) else f"{line}." for line in lines if line)


def describe_refusal(error: psycopg.Error, columns: Iterable[str]) -> Reject:
    """The reason why the database refuses a row: the kind of error and the column or constraint, never the
    value.

    `columns`: the names that the error's context may contain.
    """
    diag = error.diag
    # COPY reports `COPY relation, line 3, column price: "value"`. The longest matching name is the column.
    matches = [name for name in columns if f", column {name}:" in (diag.context or "")]
    where = _describe_name("column", diag.column_name or max(matches, key=len, default=None))
    where += _describe_name("constraint", diag.constraint_name)
    return Reject(
        RejectCode.OUT_OF_RANGE,
        f"the target refuses the row: {describe_error_class(error)}{where} (SQLSTATE {error.sqlstate})",
    )


def _describe_name(kind: str, name: str | None) -> str:
    return f", {kind} {name!r}" if name else ""


def describe_error_class(error: psycopg.Error) -> str:
    """`NumericValueOutOfRange` as `numeric value out of range`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", type(error).__name__).lower()
