"""A snapshot of MariaDB whose place in the binlog is known exactly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pymysql

from replicator.domain.errors import EnvironmentProblem

from ..database import SnapshotPoint
from .connection import connect, fetch_rows

REPEATABLE = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
WHERE = "SHOW STATUS WHERE Variable_name IN ('Binlog_snapshot_file', 'Binlog_snapshot_position')"
NOW = "SELECT CAST(unix_timestamp(now(6)) * 1000000 AS SIGNED)"
PREPARED = "SHOW GLOBAL STATUS LIKE 'Com_xa_prepare'"
FILE = re.compile(r".*\.(\d{1,17})\Z")


@contextmanager
def open_snapshot(dsn: str) -> Iterator[tuple[pymysql.Connection[Any], SnapshotPoint]]:
    """A connection in a transaction that sees the server at one moment, and that moment.

    The server itself says behind which place of the binlog the snapshot stands: it takes both while it holds the lock under
    which transactions become visible one by one, in the order in which they are in the binlog. The next transaction begins
    at that place, and every event takes more than one byte: so one byte before it no change is, of this transaction or of
    any other, and rows that were read there lie above all that they show and below all that they do not. The third number,
    the clock, is for two snapshots between which nothing was changed.

    Takes no lock and waits for nobody. Raises the driver's errors.
    """
    with closing(connect(dsn)) as reader:
        fetch_rows(reader, REPEATABLE)
        fetch_rows(reader, BEGIN)
        said = {name.lower(): value for name, value in fetch_rows(reader, WHERE)}
        found = FILE.match(said.get("binlog_snapshot_file", ""))
        if found is None:
            raise EnvironmentProblem(
                "The server does not say where in the binlog a snapshot stands (Binlog_snapshot_file).",
                next_step="Switch the binlog on (log_bin), in files that are numbered.",
            )
        refuse_prepared(reader)
        micros = int(fetch_rows(reader, NOW)[0][0])
        place = int(found[1]), int(said["binlog_snapshot_position"]) - 1, micros
        yield reader, SnapshotPoint(place, micros)
        reader.rollback()


def refuse_prepared(connection: pymysql.Connection[Any]) -> None:
    """Refuse a server on which transactions are prepared before they are committed: their changes are in the binlog where
    they were prepared, and become visible later, so a snapshot in between has no place."""
    if fetch_rows(connection, "XA RECOVER") or any(int(count) for _, count in fetch_rows(connection, PREPARED)):
        raise EnvironmentProblem(
            "Programs use XA PREPARE on this server, whose transactions are in the binlog before they are visible: "
            "a snapshot has no exact place among them.",
            next_step="Use Debezium's own incremental snapshots (docs/debezium.md).",
        )
