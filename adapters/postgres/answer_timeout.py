"""A connection that stops waiting when the server will not answer.

A middlebox may keep a connection open and forward nothing. TCP does not notice it, because the middlebox
acknowledges every packet. And a statement may take long for good reason. So after some time without a byte, a
second connection checks that the server still works on the statement.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import psycopg

T = TypeVar("T")

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
        working, copied = read_backend_activity(self.info.dsn, self.info.password, self._pid)
        arrives = None not in (self._copied, copied) and copied != self._copied
        self._copied = copied
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
            working, copied = connection.execute(LOOK, (pid,)).fetchone() or (False, None)
    except psycopg.Error:
        return None, None
    return bool(working), copied
