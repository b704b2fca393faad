"""Databases of a MariaDB server, each with its Debezium connector."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from servers.mariadb import PASSWORD, USER, MariaDb

from adapters.stack.connect import ConnectService

from .stack import World

CONNECTOR = {
    "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
    "tasks.max": "1",
    "database.hostname": "127.0.0.1",
    "database.user": USER,
    "database.password": PASSWORD,
    "database.ssl.mode": "disable",
    "include.schema.changes": "true",
    "provide.transaction.metadata": "true",
    "skipped.operations": "none",
    "decimal.handling.mode": "precise",
    "poll.interval.ms": "50",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.replace.null.with.default": "false",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.replace.null.with.default": "false",
}
NUMBERS = count(18_400)


@contextmanager
def start_mariadb_connector(
    world: World, database: MariaDb, worker: ConnectService, name: str, **settings: str
) -> Iterator[None]:
    """Runs a connector for the database of this name. Its topics have the world's prefix."""
    own = {
        "schema.history.internal.kafka.bootstrap.servers": world.stack.bootstrap_servers,
        "schema.history.internal.kafka.topic": f"{world.prefix}_schema_history",
        "topic.prefix": world.prefix,
        "database.port": str(database.port),
        "database.server.id": str(next(NUMBERS)),
        "database.include.list": name,
    }
    called = f"{world.prefix}-mariadb"
    worker.rest.put(called, {**CONNECTOR, **own, **settings})
    try:
        worker.rest.wait_running(called, 90)
        yield
    finally:
        worker.rest.delete(called)
