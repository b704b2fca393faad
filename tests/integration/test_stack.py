"""The embedded servers, started on free ports in a folder of their own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from confluent_kafka import Consumer
from paths import PROJECT
from support.budget import LONG
from support.registered_source import drop_source, register_source

from adapters.stack import EmbeddedStack, StackPorts
from adapters.stack.embedded import default_services
from adapters.stack.kafka import KafkaService
from adapters.stack.layout import StackHome
from adapters.stack.postgres import PostgresService, postgres_services
from adapters.stack.processes import ProcessService
from replicator.domain.errors import EnvironmentProblem
from replicator.ports.runtime import ServiceState

CONNECTOR = "postgres-source-connector"
pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def stack(stack: EmbeddedStack) -> Iterator[EmbeddedStack]:
    """That of this folder, which nobody needs afterwards."""
    yield stack
    stack.down(clean=True)


@pytest.fixture(scope="module")
def one_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStack]:
    """A second stack beside the first, of one server. A test leaves it as it was: it can be started and stopped."""
    folder = tmp_path_factory.mktemp("second") / "home"
    second = EmbeddedStack(PROJECT, folder, StackPorts.find_free(), services=lambda home: postgres_services(home)[-1:])
    try:
        yield second
    finally:
        second.down(clean=True)


def processes_of(stack: EmbeddedStack) -> list[psutil.Process]:
    """Every live process that names a folder of the stack in its command line, or works in it."""
    folders = [str(stack.home.folder), *(str(s.data) for s in stack.services if isinstance(s, PostgresService))]
    return [p for p in psutil.process_iter(["cmdline", "cwd"]) if any(_is_owned(p, folder) for folder in folders)]


def _is_owned(process: psutil.Process, folder: str) -> bool:
    named = any(folder in argument for argument in process.info["cmdline"] or ())
    return (named or str(process.info["cwd"] or "").startswith(folder)) and process.pid != os.getpid()


def await_true(condition: Callable[[], Any], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def insert_customer(stack: EmbeddedStack, email: str) -> None:
    with psycopg.connect(stack.dsn("source")) as connection:
        connection.execute("INSERT INTO customers (first_name, last_name, email) VALUES ('A', 'B', %s)", (email,))


def arrives(
    stack: EmbeddedStack, topic: str, text: str, seconds: float = 60, meanwhile: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """The first event of the topic whose value holds the text; `meanwhile` is called while there is none."""
    settings = {"bootstrap.servers": stack.bootstrap_servers, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None and text.encode() in (message.value() or b""):
                return dict(json.loads(message.value()))
            meanwhile()
    raise AssertionError(f"{text} did not arrive on {topic} within {seconds} s")


def new_email() -> str:
    return f"{uuid.uuid4().hex}@example.com"


def test_all_services_are_healthy_and_initialised(stack: EmbeddedStack) -> None:
    assert {s.name: s.state for s in stack.status()} == dict.fromkeys(
        ("postgres-source", "postgres-datalake", "postgres-target", "kafka", "debezium"), ServiceState.HEALTHY
    )
    assert all(s.log.is_file() for s in stack.status())
    with psycopg.connect(stack.dsn("source")) as source:
        assert source.execute("SHOW wal_level").fetchone() == ("logical",)
        assert source.execute("SELECT count(*) FROM customers").fetchone()[0] >= 5  # type: ignore[index]
    with psycopg.connect(stack.dsn("datalake")) as datalake:
        datalake.execute("SELECT event_id, seq_4, ingested_at FROM cdc_raw.cdc_events")
        datalake.execute("CREATE SCHEMA of_its_own")
    with psycopg.connect(stack.dsn("target")) as target:
        target.execute("ALTER TABLE public.order_items ADD COLUMN later text")
        target.rollback()


def test_connections_need_a_password(stack: EmbeddedStack) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(stack.dsn("target").replace("target_password", "wrong"))


def test_inserted_row_arrives_on_its_topic(stack: EmbeddedStack) -> None:
    email = new_email()
    insert_customer(stack, email)
    event = arrives(stack, "cdc.public.customers", email)
    assert event["payload"]["op"] == "c"
    assert event["payload"]["after"]["phone"] is None
    assert event["payload"]["transaction"]["id"]


def test_table_created_later_is_captured(stack: EmbeddedStack) -> None:
    with psycopg.connect(stack.dsn("source"), autocommit=True) as source:
        source.execute("CREATE TABLE later (id int PRIMARY KEY, note text)")
        source.execute("INSERT INTO later VALUES (1, 'made after the connector')")
    assert arrives(stack, "cdc.public.later", "made after")["payload"]["op"] == "c"


def test_second_up_starts_nothing(stack: EmbeddedStack) -> None:
    before = {s.name: s.pid for s in stack.status()}
    stack.up()
    stack.register_connector()
    assert {s.name: s.pid for s in stack.status()} == before


def test_killed_connect_restarts_with_its_connector(stack: EmbeddedStack) -> None:
    old = stack.service("debezium").status().pid
    stack.service("debezium").kill()
    assert stack.service("debezium").status().state is ServiceState.STOPPED
    email = new_email()
    insert_customer(stack, email)
    stack.restart("debezium")
    stack.rest.wait_running(CONNECTOR, 60)
    assert stack.service("debezium").status().pid not in (old, None)
    arrives(stack, "cdc.public.customers", email)


def test_worker_with_outdated_jars_is_restarted(stack: EmbeddedStack) -> None:
    old = stack.service("debezium").status().pid
    (plugins,) = (stack.home.folder / "debezium" / "plugins").glob("debezium-postgres")
    (plugins / "debezium-connector-postgres-3.5.0.Final.jar").touch()
    stack.up()
    stack.rest.wait_running(CONNECTOR, 60)
    assert stack.service("debezium").status().pid not in (old, None)
    assert not [jar.name for jar in plugins.iterdir() if "3.5.0" in jar.name]
    assert "kafka-clients" not in "".join(jar.name for jar in plugins.iterdir()), "the worker provides it"


def test_killed_broker_keeps_acknowledged_records(stack: EmbeddedStack) -> None:
    before, after = new_email(), new_email()
    insert_customer(stack, before)
    arrives(stack, "cdc.public.customers", before)
    stack.service("kafka").kill()
    insert_customer(stack, after)
    stack.restart("kafka")
    arrives(stack, "cdc.public.customers", before)
    arrives(stack, "cdc.public.customers", after)


def test_killed_source_keeps_committed_rows(stack: EmbeddedStack) -> None:
    before, after = new_email(), new_email()
    insert_customer(stack, before)
    stack.service("postgres-source").kill()
    stack.restart("postgres-source")
    with psycopg.connect(stack.dsn("source")) as source:
        assert source.execute("SELECT count(*) FROM customers WHERE email = %s", (before,)).fetchone() == (1,)
    insert_customer(stack, after)
    arrives(stack, "cdc.public.customers", after, meanwhile=lambda: restart_failed(stack))


def restart_failed(stack: EmbeddedStack) -> None:
    """What whoever runs the stack does. A task may just be starting when the source is killed: Connect moves it when the
    broker was away for longer than the worker's session."""
    state = stack.connector(CONNECTOR)
    if state is not None and state.failed:
        stack.register_connector()


def test_each_database_has_its_own_topics(stack: EmbeddedStack) -> None:
    dsn = stack.create_database("source", "other_shop")
    assert stack.create_database("source", "other_shop") == dsn
    with psycopg.connect(dsn) as other:
        other.execute("CREATE TABLE things (id int PRIMARY KEY, label text)")
        other.execute("INSERT INTO things VALUES (1, 'from the snapshot')")
    name = register_source(stack, "other_shop", "other")
    assert name in stack.rest.names()
    assert arrives(stack, "other.public.things", "from the snapshot")["payload"]["op"] == "r"
    with psycopg.connect(dsn) as other:
        other.execute("INSERT INTO things VALUES (2, 'from the log')")
    assert arrives(stack, "other.public.things", "from the log")["payload"]["source"]["db"] == "other_shop"
    drop_source(stack, "other")
    drop_source(stack, "other")
    assert stack.connector(name) is None
    with psycopg.connect(dsn) as other:
        assert other.execute("SELECT FROM pg_replication_slots WHERE slot_name = 'other_slot'").fetchone() is None


def test_invalid_connector_is_refused_with_the_reason(stack: EmbeddedStack) -> None:
    wrong = {"name": "wrong", "database.password": "wrong", "slot.name": "wrong", "topic.prefix": "wrong"}
    with pytest.raises(EnvironmentProblem, match="password authentication failed"):
        stack.register_connector(overrides=wrong)


def test_stop_and_start_keep_data_and_leave_no_process(stack: EmbeddedStack) -> None:
    before, after = new_email(), new_email()
    insert_customer(stack, before)
    arrives(stack, "cdc.public.customers", before)
    assert processes_of(stack)
    stack.down()
    assert processes_of(stack) == []
    assert {s.state for s in stack.status()} == {ServiceState.STOPPED}
    stack.down()
    stack.up()
    stack.rest.wait_running(CONNECTOR, 60)
    insert_customer(stack, after)
    arrives(stack, "cdc.public.customers", before)
    arrives(stack, "cdc.public.customers", after)


def test_two_stacks_do_not_see_each_other(stack: EmbeddedStack, one_database: EmbeddedStack) -> None:
    first = {s.name: s.pid for s in stack.status()}
    one_database.up()
    assert {s.pid for s in one_database.status()}.isdisjoint(first.values())
    one_database.down(clean=True)
    assert not one_database.home.folder.exists()
    assert {s.name: s.pid for s in stack.status()} == first
    assert {s.state for s in stack.status()} == {ServiceState.HEALTHY}


def test_port_used_by_another_program_is_an_error(one_database: EmbeddedStack) -> None:
    one_database.down()
    with socket.create_server(("127.0.0.1", one_database.home.ports.target)):
        with pytest.raises(EnvironmentProblem, match=f"port {one_database.home.ports.target} .* taken by another program"):
            one_database.up()
        assert {s.state for s in one_database.status()} == {ServiceState.STOPPED}, "nothing is started in vain"
    one_database.up()


def test_stale_pid_file_with_a_reused_pid_is_ignored(one_database: EmbeddedStack) -> None:
    one_database.up()
    service = one_database.service("postgres-target")
    assert isinstance(service, PostgresService)
    content = (service.data / "postmaster.pid").read_text().split("\n")
    service.kill()
    stale = "\n".join([str(os.getpid()), *content[1:]])
    (service.data / "postmaster.pid").write_text(stale)
    one_database.up()
    assert service.status().state is ServiceState.HEALTHY


def test_error_of_a_server_that_dies_at_once_shows_its_log(one_database: EmbeddedStack) -> None:
    one_database.up()
    one_database.down()
    service = one_database.service("postgres-target")
    assert isinstance(service, PostgresService)
    conf = service.data / "postgresql.conf"
    right = conf.read_text()
    conf.write_text(f"{right}no_such_setting = 1\n")
    with pytest.raises(EnvironmentProblem, match="no_such_setting"):
        one_database.up()
    conf.write_text(right)


HALF_WAY: dict[str, Callable[[EmbeddedStack], object]] = {
    "initdb at work": lambda stack: any(list(d.parent.glob("new-*/data")) for d in data_folders(stack)),
    "first data folder whole": lambda stack: any(d.is_dir() for d in data_folders(stack)),
    "log folder being formatted": lambda stack: (stack.home.folder / "kafka" / "data.new").exists(),
    "broker launched": lambda stack: (stack.home.folder / "kafka" / "server.log").exists(),
    "worker launched": lambda stack: (stack.home.folder / "debezium" / "worker.log").exists(),
}


def data_folders(stack: EmbeddedStack) -> list[Path]:
    return [s.data for s in stack.services if isinstance(s, PostgresService)]


def broker(home: StackHome) -> list[ProcessService]:
    return [KafkaService(home)]


OFTEN = [("first data folder whole", postgres_services), ("broker launched", broker)]
SELDOM = [pytest.param(moment, default_services, marks=pytest.mark.long) for moment in HALF_WAY]


@pytest.mark.parametrize(("moment", "services"), [*OFTEN, *SELDOM])
def test_start_after_a_kill_during_start(
    moment: str, services: Callable[[StackHome], Sequence[ProcessService]], tmp_path: Path
) -> None:
    second = EmbeddedStack(PROJECT, tmp_path / "killed", StackPorts.find_free(), services=services)
    try:
        starting = get_context("fork").Process(target=second.up)
        starting.start()
        await_true(lambda: HALF_WAY[moment](second), moment)
        starting.kill()
        starting.join()
        second.up()
        assert {s.state for s in second.status()} == {ServiceState.HEALTHY}
        if data_folders(second):
            with psycopg.connect(second.dsn("source")) as source:
                assert source.execute("SELECT count(*) FROM customers").fetchone() == (5,)
        second.down()
        await_true(lambda: processes_of(second) == [], "no process left", 20)
    finally:
        second.down(clean=True)


def test_two_starts_of_one_server_at_the_same_time_share_it(one_database: EmbeddedStack) -> None:
    """For example the `pg_ctl` of a killed start may still be running."""
    one_database.up()
    service = one_database.service("postgres-target")
    for _ in range(5 if LONG else 3):
        service.stop()
        together = [postgres_services(one_database.home)[-1] for _ in range(4)]
        assert {one.name for one in together} == {service.name}
        with ThreadPoolExecutor(len(together)) as threads:
            for started in [threads.submit(one.start) for one in together]:
                started.result()
        service.wait()
        assert {one.status().pid for one in together} == {service.status().pid} != {None}


def test_removed_home_folder_is_created_again(one_database: EmbeddedStack) -> None:
    one_database.up()
    with psycopg.connect(one_database.dsn("target")) as target:
        target.execute("CREATE TABLE of_the_old_home ()")
    one_database.down()
    shutil.rmtree(one_database.home.folder)
    one_database.up()
    with psycopg.connect(one_database.dsn("target")) as target:
        assert target.execute("SELECT to_regclass('of_the_old_home')").fetchone() == (None,)


def test_services_are_entry_points(tmp_path: Path) -> None:
    from importlib.metadata import entry_points

    home = StackHome.in_project(PROJECT, tmp_path / "home", StackPorts.find_free())
    found: list[ProcessService] = []
    for point in entry_points(group="replicator.services"):
        found += point.load()(home)
    databases = {"postgres-source", "postgres-datalake", "postgres-target"}
    assert {s.name for s in found} == {*databases, "kafka", "debezium", "spark-master", "spark-worker"}
    assert {s.status().state for s in found} == {ServiceState.STOPPED}
