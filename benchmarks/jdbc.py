"""The Debezium JDBC sink over the same topic into the same PostgreSQL, tuned, and measured warm."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil
import psycopg

from adapters.stack import EmbeddedStack
from adapters.stack.embedded import register

from .lanes import relation_bytes, table_totals, wal_position
from .servers import cpu_seconds, postmaster, worker
from .topic import TOPIC, Filled

TUNED = {
    "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
    "tasks.max": "1",
    "insert.mode": "upsert",
    "primary.key.mode": "record_key",
    "delete.enabled": "true",
    "schema.evolution": "basic",
    "batch.size": "5000",
    "use.reduction.buffer": "true",
    "dialect.postgres.unnest.insert.enabled": "true",
    "consumer.override.auto.offset.reset": "earliest",
    "consumer.override.max.poll.records": "5000",
    "consumer.override.fetch.min.bytes": "1",
    "consumer.override.fetch.max.bytes": "67108864",
    "consumer.override.max.partition.fetch.bytes": "67108864",
}
POLL = 0.02
PATIENCE = 900.0


def config(stack: EmbeddedStack, database: str, topic: str, table: str) -> dict[str, str]:
    """The sink's config: `topic` into `table` of a database of the target server."""
    port, user = stack.home.ports.target, "target_user"
    return {
        **TUNED,
        "topics": topic,
        "connection.url": f"jdbc:postgresql://127.0.0.1:{port}/{database}?reWriteBatchedInserts=true",
        "connection.username": user,
        "connection.password": "target_password",
        "collection.name.format": table,
    }


def measure(stack: EmbeddedStack, filled: Filled) -> dict[str, Any]:
    """The second of two runs in one worker. Its clock starts when its first rows are there, so the connector's own start is
    not held against it."""
    dsn = stack.create_database("target", "bench_jdbc")
    _run(stack, dsn, "warm", filled)
    server, connect, wal = postmaster(stack), worker(stack), wal_position(dsn)
    before = cpu_seconds(server), cpu_seconds(connect)
    found = _run(stack, dsn, "measured", filled)
    return {
        **found,
        "events": filled.events,
        "server_cpu": cpu_seconds(server) - before[0],
        "cpu": cpu_seconds(connect) - before[1],
        "peak_rss": found["rss"],
        "bytes": relation_bytes(dsn, "measured") + wal_position(dsn) - wal,
    }


def _run(stack: EmbeddedStack, dsn: str, table: str, filled: Filled) -> dict[str, Any]:
    name = f"jdbc-{table}"
    register(stack.rest, name, config(stack, "bench_jdbc", TOPIC, table), 120)
    process = worker(stack)
    try:
        began = _await(stack, name, lambda: _has(dsn, table, "TRUE"), process)[0]
        ended, rss = _await(stack, name, lambda: _has(dsn, table, f"version = {filled.events}"), process)
    finally:
        stack.rest.delete(name)
    if table_totals(dsn, table) != (filled.rows, filled.checksum):
        raise RuntimeError(f"{table} holds {table_totals(dsn, table)}, not {(filled.rows, filled.checksum)}.")
    return {"seconds": ended - began, "rss": rss}


def _await(stack: EmbeddedStack, name: str, there: Callable[[], bool], process: psutil.Process) -> tuple[float, int]:
    """When `there` became true, and the highest memory of the worker seen meanwhile."""
    rss, deadline, looked = 0, time.monotonic() + PATIENCE, 0.0
    while not there():
        rss = max(rss, process.memory_info().rss)
        now = time.monotonic()
        if now - looked > 5:
            looked, state = now, stack.connector(name)
            if now > deadline or (state is not None and state.failed):
                raise RuntimeError(f"The JDBC sink does not get on: {state}")
        time.sleep(POLL)
    return time.monotonic(), rss


_connections: dict[str, psycopg.Connection] = {}


def _has(dsn: str, table: str, condition: str) -> bool:
    """Whether the table is there with such a row."""
    connection = _connections.setdefault(dsn, psycopg.connect(dsn, autocommit=True))
    try:
        return connection.execute(f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1".encode()).fetchone() is not None
    except psycopg.errors.UndefinedTable:
        return False
