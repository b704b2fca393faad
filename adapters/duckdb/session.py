"""DuckDB in this process: one instance, a connection of its own for each use."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

_lock = threading.Lock()
_instance: tuple[int, duckdb.DuckDBPyConnection] | None = None


@contextmanager
def open_session() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with temporary tables and registered frames of its own, whose times are of UTC, on an in-memory instance
    that stays.

    Making an instance costs 12 ms of CPU time and starts a pool of threads (measured), which is more than folding a small
    batch. One thread: rows are few and narrow here, and the other cores have the next batch to decode.
    """
    connection = _shared_instance().cursor()
    try:
        yield connection
    finally:
        connection.close()


def _shared_instance() -> duckdb.DuckDBPyConnection:
    global _instance  # noqa: PLW0603  (one instance a process; a forked child makes its own)
    with _lock:
        if _instance is None or _instance[0] != os.getpid():
            made = duckdb.connect(config={"threads": 1})
            made.execute("SET GLOBAL TimeZone = 'UTC'")
            _instance = (os.getpid(), made)
        return _instance[1]
