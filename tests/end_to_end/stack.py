"""One pipeline on the shared servers: a source database with its connector, a folder, and the shipped config."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from confluent_kafka.admin import AdminClient
from ruamel.yaml import YAML
from support.cli_program import parse_answer, run_program
from support.registered_source import drop_source, make_slot_name, register_source

from adapters.stack import EmbeddedStack
from adapters.stack.layout import find_free_port

from .daemon import PROGRAM, Daemon, await_condition
from .topics import Topics

PROJECT = Path(__file__).parents[2]
TABLES = ("customers", "products", "orders", "order_items")
COMMAND_SECONDS = 120
SHIPPED = {"source": "source_db", "datalake": "datalake_db", "target": "target_db"}
STREAMS = """
SELECT FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid
WHERE s.slot_name = %s AND r.state = 'streaming'"""


class World:
    """A folder with a copy of the shipped config, a prefix for topics, and three databases of the shared servers.

    `databases` maps `source`, `datalake` and `target` to names of databases. Missing ones are created.
    """

    def __init__(self, stack: EmbeddedStack, folder: Path, name: str, databases: Mapping[str, str] | None = None) -> None:
        self.stack = stack
        self.folder = folder
        self.prefix = name if databases else f"{name}{uuid4().hex[:6]}"
        self.databases = dict(databases or {})
        for server in ("source", "datalake", "target"):
            if server not in self.databases:
                stack.create_database(server, self.prefix)
                self.databases[server] = self.prefix
        self.source = stack.dsn("source", self.databases["source"])
        self.datalake = stack.dsn("datalake", self.databases["datalake"])
        self.target = stack.dsn("target", self.databases["target"])
        self.address = f"127.0.0.1:{find_free_port()}"
        self.lake = folder / "deltalake"
        self.topics = Topics(stack.bootstrap_servers)
        self.overrides: list[str] = [
            f'sources.shop.topics=["{self.prefix}.public.*"]',
            f"sources.shop.group_id={self.prefix}",
            f"http.address={self.address}",
        ]
        self.environment = {
            "KAFKA_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
            "CONNECT_URL": f"http://127.0.0.1:{stack.home.ports.connect}",
            "SOURCE_DSN": self.source,
            "DATALAKE_DSN": self.datalake,
            "TARGET_DSN": self.target,
        }
        self.daemons: list[Daemon] = []
        self.connectors: set[str] = set()
        shutil.copytree(PROJECT / "config", folder / "config")

    # -- the source --------------------------------------------------------------------------------------------------

    def create_shop(self) -> None:
        """Creates the four tables of the shipped source with their sample rows."""
        script = (PROJECT / "init-scripts" / "source-init.sql").read_text(encoding="utf-8")
        self.execute(script.partition("SET ROLE source_user;")[2].partition("RESET ROLE;")[0])

    def execute(self, script: str, *parameters: object) -> None:
        """Runs statements in the source, each in its own transaction unless the script has other ones."""
        execute_statements(self.source, script, *parameters)

    def register(self, prefix: str = "", **settings: str) -> str:
        """Registers a connector for the source database. The default prefix of its topics is the world's."""
        prefix = prefix or self.prefix
        self.connectors.add(prefix)
        name = register_source(self.stack, self.databases["source"], prefix, **settings)
        admin = self.stack.dsn("source", superuser=True)
        what = f"{name} has finished its snapshot and streams the log"
        await_condition(lambda: fetch_rows(admin, STREAMS, make_slot_name(prefix)), what, failing=lambda: self._trace(name))
        return name

    def _trace(self, connector: str) -> str:
        state = self.stack.connector(connector)
        return state.trace_head if state is not None and state.failed else ""

    def await_offsets(self) -> None:
        """Waits until the worker has stored the connector's log position. After an earlier kill, it would repeat its
        snapshot, which lacks rows deleted since the first one."""

        def has_stored_offset() -> bool:
            mine = [r for r in self.topics.read(["_connect_offsets"]) if self.connector.encode() in (r.key or b"")]
            return bool(mine) and b"lsn_commit" in (mine[-1].value or b"")

        await_condition(has_stored_offset, f"the log position of {self.connector} is stored")

    @property
    def connector(self) -> str:
        return f"{self.prefix}-connector"

    def topic(self, table: str, schema: str = "public") -> str:
        return f"{self.prefix}.{schema}.{table}"

    @property
    def admin(self) -> AdminClient:
        return self.topics.admin

    # -- the pipeline ------------------------------------------------------------------------------------------------

    def rewrite_config(self, config: Mapping[str, Any]) -> None:
        """Replaces top-level keys of the copied config."""
        path = self.folder / "config" / "replicator.yaml"
        yaml = YAML()
        document = yaml.load(path)
        document.update(config)
        yaml.dump(document, path)

    def arguments(self, *command: str) -> list[str]:
        sets = [part for override in self.overrides for part in ("--set", override)]
        return [PROGRAM, *command, *sets]

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "PYTHONFAULTHANDLER": "1", **self.environment}

    def daemon(self, *arguments: str) -> Daemon:
        """Starts `replicator run`. It is killed at the end of the test if it still runs."""
        log = self.folder / f"daemon-{len(self.daemons)}.log"
        daemon = Daemon(self.arguments("run", *arguments), self.folder, self.environ, log, self.address)
        self.daemons.append(daemon)
        return daemon

    def run_until_caught_up(self) -> int:
        """Runs `replicator run --until-caught-up`, and returns its exit code."""
        return self.daemon("--until-caught-up").wait(COMMAND_SECONDS)

    def program(self, *command: str, seconds: float = COMMAND_SECONDS) -> subprocess.CompletedProcess[str]:
        """Runs one command of the program to its end."""
        return run_program(self.folder, *self.arguments(*command)[1:], seconds=seconds, **self.environment)

    def get_result(self, *command: str, code: int = 0, seconds: float = COMMAND_SECONDS) -> Any:
        """The `result` of a command with `--json`. The command must end with that exit code."""
        answer = self.answer(*command, code=code, seconds=seconds)
        return answer["result"]

    def answer(self, *command: str, code: int = 0, seconds: float = COMMAND_SECONDS) -> dict[str, Any]:
        """The whole JSON object of a command with `--json`."""
        done = self.program(*command, "--json", seconds=seconds)
        assert done.returncode == code, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return dict(parse_answer(done))

    def dead_letters(self) -> list[dict[str, Any]]:
        return list(self.get_result("dlq", "list", "--limit", "10000"))

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.kill()
        for prefix in self.connectors:
            drop_source(self.stack, prefix)


def execute_statements(dsn: str, script: str, *parameters: object) -> None:
    """Runs statements outside of a transaction of the driver."""
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        connection.execute(script.encode(), parameters or None)


def fetch_rows(dsn: str, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    with closing(psycopg.connect(dsn, autocommit=True)) as connection:
        return connection.execute(query.encode(), parameters or None).fetchall()


def run_python(code: str, cwd: Path, environment: Mapping[str, str], *arguments: str) -> str:
    """The output of a Python program, which must end with code 0."""
    command: Sequence[str] = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=cwd, env=dict(environment), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
