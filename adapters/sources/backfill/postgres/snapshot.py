"""A PostgreSQL snapshot with an exactly known position among the connector's changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from replicator.domain.errors import EnvironmentProblem

from ....postgres.answer_timeout import TimeoutConnection
from ....postgres.connection import KEEPALIVE, PostgresSession, application_name
from ..database import SnapshotPoint

FOLLOW = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', true)"
MARK = "SELECT pg_logical_emit_message(true, 'replicator', 'backfill')"
EXPORT = "CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
COMMITS = """
SELECT max(lsn) - '0/0'::pg_lsn FROM pg_logical_slot_peek_binary_changes(
    %s, %s::pg_lsn, NULL, 'proto_version', '1', 'publication_names', %s, 'messages', 'true')
WHERE get_byte(data, 0) = 67 AND lsn <= %s::pg_lsn"""
"""The end of the last commit in the publication's stream up to a position: 67 is the C of a commit message."""
OLDEST = """
SELECT pid, extract(epoch FROM now() - xact_start)::bigint, application_name FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1"""
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
BEGIN = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT '{}'; SET LOCAL cursor_tuple_fraction = 1; "
    "SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL row_security = off"
)
"""The transaction is idle while a lane passes its point, and while rows are compared. With row security, a user would not
see all rows: without it, the server refuses to read."""


@contextmanager
def open_snapshot(
    session: PostgresSession, publication: str, patience: float | None
) -> Iterator[tuple[psycopg.Connection[Any], SnapshotPoint]]:
    """A connection in a transaction with a consistent snapshot, and its point.

    Debezium orders a change by the commit before its own (`source.sequence`), and then by its own position. So read rows
    are placed at 0 directly after the last commit that they contain, where no change is.

    The server itself returns that commit. A slot that exports a snapshot names the log position between visible and
    invisible changes. Another slot, created before, returns the last commit before that position in the connector's own
    stream. A message between the two ensures that there is one. Both slots end with their connections; only that message
    is written.

    Waits for open transactions, at most `patience` seconds for each. Raises the driver's errors.
    """
    with closing(session.open(autocommit=True)) as follower, closing(session.open(autocommit=True)) as reader:
        wait = f"SET lock_timeout = {int((patience or 0) * 1000)}".encode()
        follower.execute(wait)
        slot = f"replicator_backfill_{follower.info.backend_pid}"
        follower.execute(FOLLOW, (slot,))
        follower.execute(MARK)
        with closing(open_walsender(session)) as sender:
            sender.execute(wait)
            _, point, name, _ = _fetch_answer(sender, EXPORT.format(f"{slot}_x"))
            [micros] = reader.execute(NOW).fetchone() or (0,)
            reader.execute(BEGIN.format(name).encode(), prepare=False)
        [place] = follower.execute(COMMITS, (slot, point, _to_option(publication), point)).fetchone() or (None,)
        follower.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        if place is None:
            raise EnvironmentProblem(
                "The stream of changes shows no commit of a message, so the snapshot has no place in it.",
                next_step="Use Debezium's own incremental snapshots (docs/reference/debezium.md).",
            )
        yield reader, SnapshotPoint((int(place),), micros)
        reader.rollback()


def describe_oldest_transaction(session: PostgresSession) -> str:
    """The transaction in the source that has written and is open longest, in words; empty if none is seen."""
    with closing(session.open(autocommit=True)) as connection:
        found = connection.execute(OLDEST).fetchone()
    if found is None:
        return ""
    pid, seconds, name = found
    return f"pid {pid}, open for {seconds} s" + (f", {name}" if name else "")


def read_system_id(session: PostgresSession) -> str:
    """An identifier of the database. It differs for other databases, and after a failover."""
    with closing(open_walsender(session)) as sender:
        identifier, timeline, _, database = _fetch_answer(sender, "IDENTIFY_SYSTEM")
    return f"{identifier}/{timeline}/{database}"


def open_walsender(session: PostgresSession) -> psycopg.Connection[Any]:
    """A connection for replication commands."""
    connection = TimeoutConnection.connect(
        session.dsn,
        autocommit=True,
        prepare_threshold=None,
        replication="database",
        application_name=application_name(f"backfill {os.getpid()}"),
        connect_timeout=10,
        **KEEPALIVE,
    )
    session.limit_waits(connection)
    return connection


def _fetch_answer(sender: psycopg.Connection[Any], command: str) -> list[str]:
    """The single row that a replication command returns, as text."""
    row = sender.execute(command.encode()).fetchone() or ()
    return [value.decode() if isinstance(value, bytes) else str(value) for value in row]


def _to_option(name: str) -> str:
    """A publication's name as the plugin's option."""
    return '"' + name.replace('"', '""') + '"'
