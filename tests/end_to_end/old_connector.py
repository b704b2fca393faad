"""A worker with an old PostgreSQL connector that loses rows at restarts: see docs/reference/debezium.md#connectors-
that-lose-rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from adapters.stack import EmbeddedStack
from adapters.stack.connect import ConnectService
from adapters.stack.layout import StackHome, find_free_port
from adapters.stack.postgres import Installation, PostgresService
from adapters.stack.processes import ProcessService

from .newer_postgres import SOURCE
from .stack import PROJECT

LOSES_ROWS = "debezium-postgres-3.5"


@contextmanager
def start_old_connector(stack: EmbeddedStack, folder: Path, source: Installation | None = None) -> Iterator[EmbeddedStack]:
    """Adds the worker to the stack's broker and targets. The source is the stack's server, or a new server of another
    version."""
    own = {
        "group.id": f"cdc-connect-{folder.name}",
        **{f"{kind}.storage.topic": f"_connect_{folder.name}_{kind}" for kind in ("offset", "config", "status")},
    }

    def services(home: StackHome) -> Sequence[ProcessService]:
        worker = ConnectService(home, connectors=(LOSES_ROWS,), settings=own)
        return [worker] if source is None else [PostgresService(home, SOURCE, installation=source), worker]

    ports = replace(stack.home.ports, connect=find_free_port())
    if source is not None:
        ports = replace(ports, source=find_free_port())
    second_stack = EmbeddedStack(PROJECT, folder, ports, services=services)
    try:
        second_stack.up()
        yield second_stack
    finally:
        second_stack.down(clean=True)
