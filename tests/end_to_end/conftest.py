"""One embedded stack for all tests of this folder, and a pipeline for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.stack import EmbeddedStack, StackPorts
from adapters.stack.connect import ConnectService
from adapters.stack.embedded import default_services
from adapters.stack.layout import StackHome, find_free_port
from adapters.stack.processes import ProcessService

from .installed import Installed
from .stack import PROJECT, SHIPPED, World, execute_statements

MakeWorld = Callable[..., World]


def list_services(home: StackHome) -> Sequence[ProcessService]:
    """The default services. The connector also has an Avro converter, which Connect finds only by a scan."""
    usual = default_services(home)
    looked_for = {"plugin.discovery": "hybrid_warn"}
    with_avro = ConnectService(home, connectors=("debezium-postgres-avro",), settings=looked_for)
    return [with_avro if isinstance(one, ConnectService) else one for one in usual]


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStack]:
    """All servers on free ports, so that a developer's stack can run too."""
    running = EmbeddedStack(PROJECT, tmp_path_factory.mktemp("servers"), StackPorts.find_free(), services=list_services)
    try:
        running.up()
        yield running
    finally:
        running.down(clean=True)


@pytest.fixture
def make_world(stack: EmbeddedStack, tmp_path: Path) -> Iterator[MakeWorld]:
    """Makes pipelines. After the test their registrations are removed and their daemons killed."""
    with ExitStack() as made:

        def make(name: str = "t", databases: Mapping[str, str] | None = None) -> World:
            folder = tmp_path / f"{name}-home"
            folder.mkdir()
            world = World(stack, folder, name, databases)
            made.callback(world.close)
            return world

        yield make


@pytest.fixture
def shipped_world(make_world: MakeWorld) -> World:
    """The shipped databases, target tables and connector, with empty targets. Only ports and folders differ."""
    world = make_world("cdc", SHIPPED)
    for server in ("datalake", "target"):
        empty_target(world, server)
    world.stack.register_connector()
    return world


def empty_target(world: World, server: str) -> None:
    """Creates a target's database again, as its init script leaves it."""
    name, script = SHIPPED[server], f"{server}-init.sql"
    admin = world.stack.dsn(server, "postgres", superuser=True)
    execute_statements(admin, f"DROP DATABASE {name} WITH (FORCE)")
    dsn = world.stack.create_database(server, name)
    execute_statements(admin, f"COMMENT ON DATABASE {name} IS 'initialised by {script}'")
    statements = (PROJECT / "init-scripts" / script).read_text(encoding="utf-8")
    execute_statements(dsn, statements.partition(f"SET ROLE {server}_user;")[2].partition("RESET ROLE;")[0])


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A pipeline over new, empty databases."""
    return make_world()


@pytest.fixture
def shop(world: World) -> World:
    """A pipeline over the four tables in new databases with empty targets, and its connector."""
    world.create_shop()
    world.register()
    return world


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in a new environment."""
    return Installed(tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="session")
def mariadb_worker(stack: EmbeddedStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectService]:
    """A Connect worker with the connector for MariaDB, separate from the stack's worker."""
    ports = replace(stack.home.ports, connect=find_free_port())
    own = {
        "group.id": "cdc-connect-mariadb",
        **{f"{kind}.storage.topic": f"_connect_mariadb_{kind}" for kind in ("offset", "config", "status")},
    }
    home = replace(stack.home, folder=tmp_path_factory.mktemp("connect"), ports=ports)
    service = ConnectService(home, connectors=("debezium-mariadb",), settings=own)
    try:
        service.start()
        service.wait()
        yield service
    finally:
        service.stop()
