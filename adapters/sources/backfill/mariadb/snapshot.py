"""A MariaDB snapshot with an exactly known binlog position."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
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
    """A connection in a transaction with a consistent snapshot, and its point.

    The server itself returns the binlog position of the snapshot. It reads both under the lock that makes transactions
    visible one by one, in binlog order. The next transaction begins at that position, and every event is longer than one
    byte. So no change of any transaction is at the position one byte before. Rows read there are above all changes that
    they contain and below all others. The third number, the clock, orders two snapshots without a change between them.

    Takes no lock and waits for no transaction. Raises the driver's errors.
    """
    with closing(connect(dsn)) as reader:
        fetch_rows(reader, REPEATABLE)
        fetch_rows(reader, BEGIN)
        said = {name.lower(): value for name, value in fetch_rows(reader, WHERE)}
        found = FILE.match(said.get("binlog_snapshot_file", ""))
        if found is None:
            raise EnvironmentProblem(
                "The server does not show the binlog position of a snapshot (Binlog_snapshot_file).",
                next_step="Switch the binlog on (log_bin), in files that are numbered.",
            )
        refuse_prepared(reader)
        micros = int(fetch_rows(reader, NOW)[0][0])
        place = int(found[1]), int(said["binlog_snapshot_position"]) - 1, micros
        yield reader, SnapshotPoint(place, micros)
        reader.rollback()


def is_passed(stored: Mapping[str, Any], point: SnapshotPoint) -> bool:
    """True if the connector has sent everything that is in the binlog before a point, by an offset that it has stored.

    `file` and `pos` are the place at which it continues: the start of a transaction, or the end of the last one. An offset
    of its own snapshot has such a place before the rows are sent.
    """
    found = FILE.match(str(stored.get("file")))
    return bool(found and not stored.get("snapshot") and (int(found[1]), int(stored["pos"])) > point.place[:2])


def refuse_prepared(connection: pymysql.Connection[Any]) -> None:
    """Refuse a server on which transactions are prepared before they are committed. Their changes are in the binlog at
    the prepare, and become visible later. A snapshot in between has no exact position."""
    if fetch_rows(connection, "XA RECOVER") or any(int(count) for _, count in fetch_rows(connection, PREPARED)):
        raise EnvironmentProblem(
            "Programs use XA PREPARE on this server, whose transactions are in the binlog before they are visible: "
            "a snapshot has no exact place among them.",
            next_step="Use Debezium's own incremental snapshots (docs/reference/debezium.md).",
        )
