"""The servers a benchmark needs, on free ports, in a folder of their own below `benchmarks/results`."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from adapters.stack import EmbeddedStack, StackPorts
from adapters.stack.connect import ConnectService
from adapters.stack.kafka import KafkaService
from adapters.stack.layout import DATABASES, StackHome
from adapters.stack.postgres import PostgresService
from adapters.stack.processes import ProcessService

PROJECT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results")
CONNECT_JAVA = ("-Xms256m", "-Xmx1g")
"""The compiler unlimited, unlike in the development stack: this worker is measured."""


@contextmanager
def servers(*, source: bool = False, connect: bool = True) -> Iterator[EmbeddedStack]:
    """A broker and a target database; with `source` also a source database, with `connect` also a Connect worker with the
    Debezium PostgreSQL source and JDBC sink. Everything starts empty and is stopped and removed at the end.

    One run at a time per checkout: what a killed run left is stopped first.
    """
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        stack = EmbeddedStack(
            PROJECT, RESULTS / "stack", StackPorts.find_free(), services=lambda home: _services(home, source, connect)
        )
        stack.down(clean=True)
        try:
            stack.up()
            yield stack
        finally:
            stack.down(clean=True)


def workspace(name: str) -> Path:
    """An empty folder below the results."""
    path = RESULTS / "work" / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def postmaster(stack: EmbeddedStack, server: str = "target") -> psutil.Process:
    """The server process of a database."""
    pid = next(s.pid for s in stack.status() if s.name == f"postgres-{server}")
    return psutil.Process(pid)


def worker(stack: EmbeddedStack) -> psutil.Process:
    """The process of Kafka Connect."""
    return psutil.Process(next(s.pid for s in stack.status() if s.name == "debezium"))


def cpu_seconds(process: psutil.Process) -> float:
    """CPU time of a process, its children that have ended, and those that live."""
    times = process.cpu_times()
    spent = times.user + times.system + times.children_user + times.children_system
    return spent + sum(_start_own_server(child) for child in process.children(recursive=True))


def _start_own_server(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _services(home: StackHome, source: bool, connect: bool) -> Sequence[ProcessService]:
    named = ("source", "target") if source else ("target",)
    out: list[ProcessService] = [PostgresService(home, DATABASES[name]) for name in named]
    out.append(KafkaService(home))
    if connect:
        connectors = ("debezium-postgres", "debezium-jdbc")
        out.append(ConnectService(home, java_options=CONNECT_JAVA, connectors=connectors))
    return out
