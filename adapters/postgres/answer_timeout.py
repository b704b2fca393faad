"""A connection whose waits for an answer end.

The network layer does not notice a middlebox that keeps a connection open and forwards nothing on it: the middlebox's own
kernel acknowledges every packet. And a statement may rightly take long. So after a time without a byte a second connection
looks whether the server still works on the statement.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import psycopg

T = TypeVar("T")

LOOK_AFTER = 30.0
"""Seconds without a byte after which the server is asked, and again each time after so many."""
SURE_AFTER = 3.0
"""What one look finds is true if another one so much later finds it too: an answer may have been on its way."""
HURRIED = 2.0
"""The first look when the program is to end."""
LOOK_SECONDS = 10.0
"""How long a look may take."""
ANSWER_SECONDS = 300.0
"""The limit, unless something else is configured."""

LOOK = """
SELECT state = 'active' AND wait_event_type IS DISTINCT FROM 'Client',
       (SELECT bytes_processed FROM pg_catalog.pg_stat_progress_copy AS copy WHERE copy.pid = session.pid)
FROM pg_catalog.pg_stat_activity AS session WHERE pid = %s"""
"""A server process that waits for its client, while this waits for it, has a client that it cannot reach, unless more of a
COPY arrives meanwhile: slow networks have much of it on its way."""

Silence = Callable[[float], None]
"""Told how long there has been no byte; raises to end the wait."""


def limit_waits(gen: Generator[Any, Any, T], silence: Silence) -> Generator[Any, Any, T]:
    """The driver's generator of one exchange with the server, ended by `silence`."""
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
    """A connection that closes itself when nobody will answer on it, with OperationalError. `limit`: seconds without a byte
    after which nobody will, where that cannot be found out. `hurry`: set when the program is to end. Without `limit_waits`
    every answer has to come within seconds."""

    limit: float | None = None
    hurry: threading.Event
    _pid = 0
    _next = _suspected = 0.0
    _copied: int | None = None
    _hurried = False

    def limit_waits(self, limit: float, hurry: threading.Event) -> None:
        """From now on answers may take longer. The process is asked for, as a pooler gives its own number for it."""
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
    """Whether the server's process `pid` works on a statement, and how many bytes of a COPY it has read. None when it
    cannot be asked, and without a COPY."""
    # A connection for commands of replication could not be asked so.
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
