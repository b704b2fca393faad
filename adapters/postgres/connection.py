"""A connection that is opened when needed, and opened again after it broke."""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psycopg

from replicator.domain.errors import EnvironmentProblem

from .answer_timeout import ANSWER_SECONDS, TimeoutConnection
from .errors import is_row_refusal, is_session_lost, translate_error

TOLD_TWICE = "error ignored terminating"
"""The start of a driver's warning about a pipeline error that it also raises, and that is translated here."""

OLDEST_SERVER = 150_000
SETTINGS = {
    "timezone": "UTC",  # naive timestamps in COPY are UTC
    "datestyle": "ISO, YMD",
    "intervalstyle": "iso_8601",
    "standard_conforming_strings": "on",
    "enable_hashjoin": "off",  # small batches into large tables: look rows up by index; see `planner_hints`
    "enable_mergejoin": "off",
    "jit": "off",  # compiling took 25 ms of every repair, whatever its size (measured)
    "work_mem": "64MB",
    "temp_buffers": "32MB",
    "lock_timeout": "10s",
    "client_connection_check_interval": "250ms",  # a killed client frees its locks at once, even in the midst of a statement
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
KEEPALIVE: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
GONE_WITHIN_MS = 5_000
PREPARED = 2_000
"""Prepared statements per connection: a few per lane."""


def is_first_time(record: logging.LogRecord) -> bool:
    """A filter for the driver's log."""
    return not str(record.msg).startswith(TOLD_TWICE)


logging.getLogger("psycopg").addFilter(is_first_time)


def application_name(role: str) -> str:
    """The name of this process in pg_stat_activity. It identifies the holder of a lane."""
    return f"replicator {role} {platform.node()[:24]}/{os.getpid()}"[:63]


@contextmanager
def planner_hints(cursor: psycopg.Cursor, *, bulk: bool) -> Iterator[None]:
    """Allows large statements to join by scans. Small ones look rows up by index, which is the session's default."""
    for value in ("on", "off"):
        if bulk:
            cursor.execute(
                f"SET LOCAL enable_hashjoin = {value}; SET LOCAL enable_mergejoin = {value}".encode(), prepare=False
            )
        if value == "on":
            yield


class PostgresSession:
    """A lazily opened connection in autocommit mode, used by one block at a time, in any thread.

    - `generation` counts connections. Locks and temporary tables are lost when it changes.
    - After an error that ends the session (`errors.ENDS_SESSION`), another connection is opened.
    - Errors of the driver are raised as errors of this program. Row errors (`errors.is_row_refusal`) are not
      translated.
    """

    def __init__(self, dsn: str, role: str, answer_timeout: float = ANSWER_SECONDS) -> None:
        self.dsn = dsn
        self._answer_timeout = answer_timeout
        self._hurry = threading.Event()
        self._role = role
        self._connection: psycopg.Connection | None = None
        self._last: tuple[int, datetime] | None = None
        self.generation = 0
        self._turn = threading.RLock()

    def open(self, *, autocommit: bool = False) -> psycopg.Connection:
        """A new connection with this program's settings, not shared. Raises the driver's errors."""
        given = str(psycopg.conninfo.conninfo_to_dict(self.dsn).get("options") or "")
        options = " ".join([given, *(f"-c {name}={value.replace(' ', '')}" for name, value in SETTINGS.items())])
        connection = TimeoutConnection.connect(
            self.dsn,
            autocommit=True,
            prepare_threshold=0,
            application_name=application_name(self._role),
            client_encoding="utf8",
            connect_timeout=10,
            options=options,
            **KEEPALIVE,
        )
        self.limit_waits(connection)
        connection.autocommit = autocommit
        return connection

    def limit_waits(self, connection: TimeoutConnection) -> None:
        """Limits the waits of a connection in autocommit mode, as `open` does."""
        connection.limit_waits(self._answer_timeout, self._hurry)

    @property
    def connection(self) -> psycopg.Connection:
        """The connection; opened if there is none that works."""
        if self._connection is None or self._connection.closed:
            self._connection = self._reconnect()
            self.generation += 1
        return self._connection

    def ensure_connection(self) -> int:
        """Opens the connection if necessary; returns its generation."""
        with self._translate_errors("connecting"):
            return self.generation if self.connection else 0

    def _reconnect(self) -> psycopg.Connection:
        connection = self.open(autocommit=True)
        connection.prepared_max = PREPARED
        if connection.info.server_version < OLDEST_SERVER:
            connection.close()
            raise EnvironmentProblem("the server is older than PostgreSQL 15, which brought MERGE", next_step="Upgrade it.")
        self._terminate_predecessor(connection)
        row = connection.execute("SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()").fetchone()
        self._last = row
        return connection

    def _terminate_predecessor(self, connection: psycopg.Connection) -> None:
        """Ends our previous backend. It may not have noticed the lost connection, and must not commit or keep
        our locks."""
        if self._last is not None:
            connection.execute(
                "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s",
                (GONE_WITHIN_MS, *self._last),
            )

    @contextmanager
    def cursor(self, doing: str) -> Iterator[psycopg.Cursor]:
        """A cursor outside a transaction. Errors of the driver are translated."""
        with self._turn, self._translate_errors(doing), self.connection.cursor() as cursor:
            yield cursor

    @contextmanager
    def transaction(self, doing: str) -> Iterator[psycopg.Cursor]:
        """A cursor for one transaction. It is rolled back when the block raises or leaves it open.

        The caller sends BEGIN and COMMIT, so that both can share a round trip with other statements.
        """
        with self._turn, self._translate_errors(doing):
            connection = self.connection
            try:
                with connection.cursor() as cursor:
                    yield cursor
            finally:
                self._roll_back(connection)

    def _roll_back(self, connection: psycopg.Connection) -> None:
        status = connection.info.transaction_status
        if connection.closed or status == psycopg.pq.TransactionStatus.IDLE:
            return
        try:
            connection.rollback()
        except psycopg.Error:
            connection.close()

    @contextmanager
    def _translate_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            if is_row_refusal(error):
                raise
            if self._connection is not None and is_session_lost(error):
                self._connection.close()
            raise translate_error(error, doing) from error

    def hurry(self) -> None:
        """Ends waits for missing answers within seconds, because the program ends. Safe from any thread."""
        self._hurry.set()

    def close(self) -> None:
        """Closes the connection and with it its locks. May be called twice; the session can be used again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
