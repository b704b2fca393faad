"""A newer PostgreSQL server as the source, in addition to the stack's server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from adapters.stack.layout import DATABASES, find_free_port
from adapters.stack.postgres import PostgresService, create_database, create_publication, installations

from .stack import World

FIRST_THAT_DECODES_ANEW = 17
"""From this version on, PostgreSQL sends an open transaction again after a restart of the connector."""
NEWER = [found for found in installations() if found.major >= FIRST_THAT_DECODES_ANEW]
SMALL = {"max__batch__size": "50", "max__queue__size": "100"}
"""Settings of a connector with small batches, so that a restart happens while copied rows are delivered."""
SOURCE = DATABASES["source"]


@contextmanager
def start_newer_server(world: World, folder: Path) -> Iterator[int]:
    """Starts a newer server as the world's source, and yields its port."""
    home = replace(world.stack.home, folder=folder, ports=replace(world.stack.home.ports, source=find_free_port()))
    server = PostgresService(home, SOURCE, installation=NEWER[0])
    try:
        server.start()
        server.wait()
        port = home.ports.source
        create_database(SOURCE.dsn(port, "postgres", superuser=True), world.prefix, SOURCE.user)
        create_publication(SOURCE.dsn(port, world.prefix, superuser=True))
        world.source = SOURCE.dsn(port, world.prefix)
        yield port
    finally:
        server.stop()
        server.erase()
