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
    "process": SPARK,
    "integration": SPARK,
}
"""By tier. All others may touch everything."""
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


def tier_of(path: Path, tests: Path) -> str:
    return path.relative_to(tests).parts[0]


@contextmanager
def limited_to(tier: str) -> Iterator[list[str]]:
    """What was touched all the same: in a thread, or where the code catches every error."""
    global _forbidden  # noqa: PLW0603 - an audit hook has no other way to know
    before, _forbidden = _forbidden, FORBIDDEN.get(tier, frozenset())
    _touched.clear()
    try:
        yield _touched
    finally:
        _forbidden = before


def check_servers(tier: str, fixtures: set[str], test: str) -> None:
    servers = {SERVERS[name] for name in fixtures & SERVERS.keys()}
    if len(servers) > MOST_SERVERS.get(tier, len(servers)):
        raise Forbidden(f"{test} starts {', '.join(sorted(servers))}: not in tests/{tier}, see tests/tiers.py")
