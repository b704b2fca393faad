"""A connection that is opened when needed, and opened again after it broke or got no answer."""

from __future__ import annotations

import ipaddress
import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import psycopg

from replicator.domain.errors import EnvironmentProblem
from replicator.ports.runtime import Diagnosis

from .errors import is_row_refusal, is_session_lost, translate_error

T = TypeVar("T")

REPEATED_WARNING = "error ignored terminating"
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


LOOK_AFTER = 30.0
"""Seconds without a byte before the first check, and between checks."""
SURE_AFTER = 3.0
"""Seconds until a second check must confirm the first, because an answer may have been on its way."""
HURRIED = 2.0
"""Seconds without a byte before the first check when the program ends."""
LOOK_SECONDS = 10.0
"""How long a check may take."""
ANSWER_SECONDS = 300.0
"""The default limit."""

LOOK = """
SELECT state = 'active' AND wait_event_type IS DISTINCT FROM 'Client',
       (SELECT bytes_processed FROM pg_catalog.pg_stat_progress_copy AS copy WHERE copy.pid = session.pid)
FROM pg_catalog.pg_stat_activity AS session WHERE pid = %s"""
"""If the server process waits for its client while the client waits for it, it cannot reach the client.

Exception: it receives more data of a COPY meanwhile. A slow network may have much of it on its way.
"""


def is_first_time(record: logging.LogRecord) -> bool:
    """A filter for the driver's log."""
    return not str(record.msg).startswith(REPEATED_WARNING)


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
        user_options = str(psycopg.conninfo.conninfo_to_dict(self.dsn).get("options") or "")
        options = " ".join([user_options, *(f"-c {name}={value.replace(' ', '')}" for name, value in SETTINGS.items())])
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
            connection = self.open(autocommit=True)
            connection.prepared_max = PREPARED
            if connection.info.server_version < OLDEST_SERVER:
                connection.close()
                sentence = "the server is older than PostgreSQL 15, which brought MERGE"
                raise EnvironmentProblem(sentence, next_step="Upgrade it.")
            if self._last is not None:
                # The previous backend may not have noticed the lost connection, and must not commit or keep our locks.
                connection.execute(
                    "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s",
                    (GONE_WITHIN_MS, *self._last),
                )
            own = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
            self._last = connection.execute(own).fetchone()
            self._connection = connection
            self.generation += 1
        return self._connection

    def ensure_connection(self) -> int:
        """Opens the connection if necessary; returns its generation."""
        with self._translate_errors("connecting"):
            return self.generation if self.connection else 0

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


# A connection that stops waiting when the server will not answer.
#
# A middlebox may keep a connection open and forward nothing. TCP does not notice it, because the middlebox
# acknowledges every packet. And a statement may take long for good reason. So after some time without a byte, a
# second connection checks that the server still works on the statement.


Silence = Callable[[float], None]
"""Called with the seconds without a byte; raises to end the wait."""


def limit_waits(gen: Generator[Any, Any, T], silence: Silence) -> Generator[Any, Any, T]:
    """The driver's generator for one exchange with the server, ended by `silence`."""
    try:
        wants = next(gen)
        since = time.monotonic()
        while True:
            ready = yield wants
            if ready:
                since = time.monotonic()
            else:
                silence(time.monotonic() - since)
            wants = gen.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


class TimeoutConnection(psycopg.Connection):
    """A connection that closes itself with OperationalError when the server will not answer.

    - `limit`: seconds without a byte, after which it closes if the server's activity cannot be read.
    - `hurry`: set when the program ends.

    Before `limit_waits` is called, every answer must arrive within seconds.
    """

    limit: float | None = None
    hurry: threading.Event
    _pid = 0
    _next = _suspected = 0.0
    _copied: int | None = None
    _hurried = False

    def limit_waits(self, limit: float, hurry: threading.Event) -> None:
        """Allows longer answers from now on. The process number is queried, because a pooler reports its own."""
        (self._pid,) = self.execute("SELECT pg_backend_pid()").fetchone() or (0,)
        self.limit, self.hurry = limit, hurry

    def wait(self, gen: Any, *more: Any, **named: Any) -> Any:
        self._next, self._suspected, self._copied, self._hurried = LOOK_AFTER, 0.0, None, False
        return super().wait(limit_waits(gen, self._silence), *more, **named)

    def _silence(self, seconds: float) -> None:
        if self.limit is None:
            if seconds > LOOK_SECONDS:
                self._close_silent(seconds, "")
            return
        if self.hurry.is_set() and not self._hurried:
            self._hurried, self._next = True, min(self._next, max(seconds, HURRIED))
        if seconds < self._next:
            return
        working, copied_bytes = read_backend_activity(self.info.dsn, self.info.password, self._pid)
        arrives = None not in (self._copied, copied_bytes) and copied_bytes != self._copied
        self._copied = copied_bytes
        doubtful = not working and not arrives and (working is False or self._hurried or seconds > self.limit)
        if doubtful and self._suspected:
            idle, unknown = "though it has nothing left to do for this connection", "and takes no other connection either"
            self._close_silent(seconds, f", {unknown if working is None else idle}")
        self._suspected = seconds if doubtful else 0.0
        self._next = seconds + (SURE_AFTER if doubtful else LOOK_AFTER)

    def _close_silent(self, seconds: float, why: str) -> None:
        self.pgconn.finish()
        raise psycopg.OperationalError(f"the server has not answered for {seconds:.0f} s{why}")


def read_backend_activity(dsn: str, password: str, pid: int) -> tuple[bool | None, int | None]:
    """True if the server process `pid` works on a statement, and the bytes of a COPY that it has read.

    The first value is None if the server cannot be queried, the second without a COPY.
    """
    # A replication connection cannot run this query.
    more: dict[str, Any] = {**psycopg.conninfo.conninfo_to_dict(dsn), **({"password": password} if password else {})}
    more.pop("replication", None)
    try:
        with TimeoutConnection.connect(
            **{**more, "connect_timeout": int(LOOK_SECONDS), "application_name": "replicator look"}, autocommit=True
        ) as connection:
            working, copied_bytes = connection.execute(LOOK, (pid,)).fetchone() or (False, None)
    except psycopg.Error:
        return None, None
    return bool(working), copied_bytes


# A short-lived PostgreSQL connection for checks.

TIMEOUT_SECONDS = 5
Look = Callable[[psycopg.Connection], Iterable[Diagnosis]]


def run_checks(name: str, dsn: str, look: Look) -> Iterator[Diagnosis]:
    """The diagnoses of `look` over a connection to `dsn`, and an error if the connection fails.

    The error contains the server's own sentence, which never contains the password. The connection has its own timeout:
    the server's statement timeout does not help if the server cannot be reached.
    """
    try:
        with TimeoutConnection.connect(
            dsn,
            connect_timeout=TIMEOUT_SECONDS,
            application_name="replicator doctor",
            autocommit=True,
            options=f"-c statement_timeout={TIMEOUT_SECONDS}s",
        ) as connection:
            yield from look(connection)
    except psycopg.Error as error:
        problem = translate_error(error, "connecting")
        step = problem.next_step or "Start the server, or correct host and port in `dsn`."
        yield Diagnosis("error", name, problem.sentence, step)


def choose_diagnosis(name: str, good: bool, fine: str, wrong: str, step: str) -> Diagnosis:
    """The diagnosis `fine` if the check is `good`, otherwise the error `wrong` with its next step."""
    return Diagnosis("ok", name, fine) if good else Diagnosis("error", name, wrong, step)


def fetch_rows(connection: psycopg.Connection, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    return connection.execute(query.encode(), parameters or None).fetchall()


def check_transport(connection: psycopg.Connection, name: str) -> Iterator[Diagnosis]:
    """Check that no one on the network can read the connection or impersonate the server. Local connections are skipped."""
    if _is_local(connection.info.hostaddr):
        return
    mode = connection.info.get_parameters().get("sslmode", "prefer")
    if connection.pgconn.ssl_in_use and mode == "verify-full":
        yield Diagnosis("ok", name, "The connection is encrypted, and the server has proven its identity.")
        return
    risk = "the identity of the server is not checked" if connection.pgconn.ssl_in_use else "the connection is not encrypted"
    step = "Add sslmode=verify-full and sslrootcert=FILE to `dsn`; the server needs a certificate for the host in it."
    yield Diagnosis("warning", name, f"With sslmode {mode}, {risk}.", step)


def _is_local(address: str) -> bool:
    """True for loopback addresses, and for no address: a Unix socket."""
    return not address or ipaddress.ip_address(address).is_loopback
