"""What the tests of a tier may touch. A tier is a folder below `tests`; a test that touches more fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SOCKETS = frozenset({"socket.connect", "socket.bind"})
PROCESSES = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"})
SPARK = frozenset({"import pyspark"})
FORBIDDEN = {
    "pure": SOCKETS | PROCESSES | SPARK,
    "golden": SOCKETS | PROCESSES | SPARK,
    "component": SPARK,
    "process": frozenset(),
    "integration": SPARK,
}
"""By tier; none of these may begin a Spark session. All others may touch everything."""
SERVERS = {
    "postgres_server": "PostgreSQL",
    "own_postgres_server": "PostgreSQL",
    "broker": "Kafka",
    "own_broker": "Kafka",
    "s3": "an object store",
    "registry": "a schema registry",
    "mariadb_server": "MariaDB",
}
"""Fixtures that start a server."""
MOST_SERVERS = {"pure": 0, "golden": 0, "architecture": 0, "process": 0, "component": 1}


class Forbidden(RuntimeError):
    """A test touched what its tier may not."""


_forbidden: frozenset[str] = frozenset()
_touched: list[str] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """A hook of the interpreter: see the table of audit events in Python's documentation."""
    if not _forbidden:
        return
    if event == "import":
        event = f"import {arguments[0].partition('.')[0]}"
    if event in _forbidden:
        _touched.append(event)
        raise Forbidden(f"{event}: not in this tier, see tests/tiers.py")


sys.addaudithook(_audit)


def has_spark_session() -> bool:
    """Once tests of Spark are collected, pyspark is imported, and the hook sees no more of it."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


def tier_of(path: Path, tests: Path) -> str:
    return path.relative_to(tests).parts[0]


@contextmanager
def limited_to(tier: str) -> Iterator[list[str]]:
    """What was touched all the same: in a thread, or where the code catches every error."""
    global _forbidden, _touched
    before = _forbidden, _touched
    _forbidden, _touched = FORBIDDEN.get(tier, frozenset()), []
    touched = _touched
    had_session = has_spark_session()
    try:
        yield touched
    finally:
        _forbidden, _touched = before
        if tier in FORBIDDEN and has_spark_session() and not had_session:
            touched.append("a Spark session")


def check_servers(tier: str, fixtures: set[str], test: str) -> None:
    servers = {SERVERS[name] for name in fixtures & SERVERS.keys()}
    if len(servers) > MOST_SERVERS.get(tier, len(servers)):
        raise Forbidden(f"{test} starts {', '.join(sorted(servers))}: not in tests/{tier}, see tests/tiers.py")
