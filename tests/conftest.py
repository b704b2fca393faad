"""Servers shared by the tests, and cleanup after tests. Each server is started once, by its first test, and stopped at
the end."""

from __future__ import annotations

import gc
import logging
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings
from paths import TESTS
from psycopg import sql
from servers.kafka import Broker
from servers.mariadb import WITH_BINLOG, MariaDb, find_binaries
from servers.object_store import ObjectStore, object_store
from servers.schema_registry import schema_registry
from tiers import check_servers, limited_to, tier_of
from xdist.scheduler import LoadScopeScheduling

from adapters.stack.layout import find_free_port
from adapters.stack.postgres import choose_installation, make_reachable, own_folder, server_user
from replicator.testing.contract import EXAMPLES

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "100",
    "wal_level": "logical",
    "log_min_messages": "fatal",
    "autovacuum": "off",  # It visits all databases each minute, and there are hundreds.
}

SLOW_PROMISES = {
    "test_mutated_records_are_accounted_for",
    "test_histories_with_row_transforms_equal_the_model",
    "test_histories_in_which_deleted_rows_age_out_equal_the_model",
}
"""Tests of published suites that take seconds. The suites themselves have no such mark."""


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Skips the long tests by default. A suite with tests or cases of its contract in `always` runs only those by
    default."""
    for item in items:
        check_servers(tier_of(item.path, TESTS), set(item.fixturenames), item.nodeid)
        always = getattr(item.cls, "always", {item.originalname})
        if item.function.__module__.startswith("replicator.testing") and not {item.originalname, item.name} & always:
            item.add_marker("long")
        if item.originalname in SLOW_PROMISES:
            item.add_marker("slow")
    if not os.environ.get("REPLICATOR_LONG"):
        for item in (item for item in items if item.get_closest_marker("long")):
            item.add_marker(pytest.mark.skip(reason="long: set REPLICATOR_LONG=1"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collected objects stay until the end. The garbage collector must not scan them again and again."""
    gc.disable()
    result = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Limits the imports of a module, which happen when it is collected."""
    with limited_to(tier_of(collector.path, TESTS) if isinstance(collector, pytest.Module) else ""):
        return (yield)


def tier_of_case(item: pytest.Item) -> str:
    """The tier of a test. A test with `spark` in its file or name runs on Spark."""
    tier = tier_of(item.path, TESTS)
    return "spark" if "spark" in item.nodeid.lower() and tier in ("process", "component", "integration") else tier


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with limited_to(tier_of_case(item)) as touched:
        result = yield
    assert not touched, f"{touched}: not in this tier, see tests/tiers.py"
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with limited_to(tier_of_case(item)) as touched:
        result = yield
    assert not touched, f"{touched}: not in this tier, see tests/tiers.py"
    return result


STARTED_ONCE = {
    "spark": r"spark_case|import SparkEngine|from adapters\.spark",
    "kafka": r"\bbroker: Broker|\(broker,|\bsource_of\b",
    "registry": r"\bregistry: str|\bregistry\)",
    "mariadb": r"\bmariadb_server\b",
    "stack": r"\bstack: EmbeddedStack\b",
}
"""Servers that start slowly -> a pattern in the files that use them."""


class SharedServers(LoadScopeScheduling):
    """Tests with the same server run on one worker, so that it starts once. All Spark tests share one JVM. Other tests
    stay together by file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.split("/")[1] in ("end_to_end", "architecture", "golden", "pure"):
            return file
        return "spark" if "spark" in nodeid.lower() else find_server(self.config.rootpath / file) or file


@cache
def find_server(file: Path) -> str | None:
    text = file.read_text()
    return next((name for name, word in STARTED_ONCE.items() if re.search(word, text)), None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharedServers:
    """Distributes tests over workers, see pytest-xdist."""
    return SharedServers(config, log)


TRIED = re.compile(r"^REPLICATOR_SEED=(\d+) tried=(\d+)$", re.MULTILINE)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the number of random histories, for docs/reference/measurements.md."""
    said = [found for report in terminalreporter.getreports("passed") for found in TRIED.findall(report.capstdout)]
    if said:
        tried = sum(int(number) for _, number in said)
        terminalreporter.write_line(f"{len(said)} properties held for {tried} random inputs, seed {said[0][0]}.")


# No deadlines: tests run in parallel.
settings.register_profile(
    "tests", max_examples=min(100, 10 * EXAMPLES), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("unshrunk", settings.get_profile("tests"), phases=[Phase.generate])
settings.load_profile("tests")

# These tests cut no power, and writes of a killed process are not lost. `test_durability.py` checks the calls.
os.fsync = lambda _: None


@pytest.fixture
def unshrunk() -> Iterator[None]:
    """For tests that plant a fault: they need no minimal example."""
    settings.load_profile("unshrunk")
    yield
    settings.load_profile("tests")


LOGGERS = [logging.getLogger(name) for name in ("", "adapters", "replicator")]
LEVELS, STRUCTLOG = [logger.level for logger in LOGGERS], structlog.get_config()


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Restores logging after each test. Commands configure it for the whole process, also in fixtures."""
    handlers = list(LOGGERS[0].handlers)
    yield
    LOGGERS[0].handlers = handlers
    for logger, level in zip(LOGGERS, LEVELS, strict=True):
        logger.setLevel(level)
    structlog.configure(**STRUCTLOG)


class PostgresServer:
    """A temporary cluster on a free port. Its superuser `tester` owns the databases that `database()` creates."""

    def __init__(self) -> None:
        self.user = server_user()
        self.installation = make_reachable(choose_installation(), self.user)
        self.folder = self._new_folder()
        self.port = find_free_port()
        self.numbers = count(1)

    def _new_folder(self) -> Path:
        parent = own_folder("replicator-tests") if self.user.entry else Path(tempfile.gettempdir())
        folder = Path(tempfile.mkdtemp(prefix="pg-", dir=parent))
        self.user.take_ownership(folder)
        return folder

    def run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self.installation.program(program), "-D", str(self.folder / "data"), *arguments],
            check=True,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            **self.user.popen_options(),
        )

    def start(self) -> None:
        self.run("initdb", "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        self.start_again()

    def start_again(self) -> None:
        options = " ".join(f"-c {name}='{value}'" for name, value in SETTINGS.items())
        self.run("pg_ctl", "start", "-w", "-l", str(self.folder / "log"), "-o", f"-p {self.port} {options}")

    def stop(self) -> None:
        self.run("pg_ctl", "stop", "-w", "-m", "immediate")
        # Hundreds of databases have a hundred thousand files. Do not wait for their removal.
        subprocess.Popen(["rm", "-rf", self.folder], start_new_session=True)

    def dsn(self, database: str = "postgres") -> str:
        return f"host=127.0.0.1 port={self.port} user=tester dbname={database}"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://tester@127.0.0.1:{self.port}/{database}"

    def slots(self) -> list[str]:
        """The replication slots of all databases."""
        with psycopg.connect(self.dsn()) as connection:
            return [slot for (slot,) in connection.execute("SELECT slot_name FROM pg_replication_slots")]

    def database(self, name: str = "", language: str = "") -> str:
        """The DSN of a new, empty database. It compares text by the rules of `language`, by default as bytes."""
        name = name or f"test_{next(self.numbers)}"
        order = f"TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE '{language}' LOCALE 'C'" if language else ""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {} " + order).format(sql.Identifier(name)))
        return self.dsn(name)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    left = server.slots()
    server.stop()
    assert not left, f"Tests have left the replication slots {left}. A server has few slots for all its databases."


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka broker."""
    running = Broker(tmp_path_factory.mktemp("kafka"))
    try:
        yield running
    finally:
        # An orderly stop of a broker with hundreds of topics takes most of a minute.
        running.service.kill()


@pytest.fixture
def own_postgres_server() -> Iterator[PostgresServer]:
    """A server that a test may stop and start."""
    server = PostgresServer()
    server.start()
    yield server
    server.stop()


SLOTS = "FROM pg_replication_slots WHERE database = current_database()"


@pytest.fixture
def postgres_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """A database for one test. Its replication slots are dropped at the end."""
    dsn = postgres_server.database()
    yield dsn
    with psycopg.connect(dsn, autocommit=True) as connection:
        # A session that a test has just closed may still hold its slot. A temporary one ends with it.
        connection.execute(f"SELECT pg_terminate_backend(active_pid, 10000) {SLOTS} AND active")
        connection.execute(f"SELECT pg_drop_replication_slot(slot_name) {SLOTS}")


@pytest.fixture(scope="class")
def dsn_of_class(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> None:
    """Sets `dsn` to a database for all tests of a class, for targets that drop their schemas when they are closed."""
    request.cls.dsn = postgres_server.database()


@pytest.fixture(scope="session")
def mariadb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    """A MariaDB with a binlog. Its tests are skipped on a machine without MariaDB."""
    folder = tmp_path_factory.mktemp("mariadb")
    found = find_binaries(folder)
    if isinstance(found, str):
        pytest.skip(found)
    server = MariaDb(found, folder / "server", find_free_port(), WITH_BINLOG)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def s3() -> Iterator[ObjectStore]:
    """An object store without authentication."""
    with object_store() as store:
        yield store


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a schema registry."""
    with schema_registry(tmp_path_factory.mktemp("registry") / "log") as address:
        yield address
