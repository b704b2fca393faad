"""Servers that tests share. Each is started once, when the first test asks for it, and stopped at the end."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest
from object_store import ObjectStore, object_store
from psycopg import sql

from adapters.stack.pg_install import choose, own_folder, reachable, server_user

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
}


class PostgresServer:
    """A throw-away cluster on a free port; `database()` makes databases in it, whose owner is its superuser `tester`."""

    def __init__(self) -> None:
        self.user = server_user()
        self.installation = reachable(choose(), self.user)
        self.folder = self._new_folder()
        self.port = free_port()
        self.numbers = count(1)

    def _new_folder(self) -> Path:
        parent = own_folder("replicator-tests") if self.user.entry else Path(tempfile.gettempdir())
        folder = Path(tempfile.mkdtemp(prefix="pg-", dir=parent))
        self.user.own(folder)
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
        options = " ".join(f"-c {name}='{value}'" for name, value in SETTINGS.items())
        self.run("pg_ctl", "start", "-w", "-l", str(self.folder / "log"), "-o", f"-p {self.port} {options}")

    def stop(self) -> None:
        self.run("pg_ctl", "stop", "-w", "-m", "immediate")
        shutil.rmtree(self.folder)

    def dsn(self, database: str = "postgres") -> str:
        return f"host=127.0.0.1 port={self.port} user=tester dbname={database}"

    def database(self, name: str = "", language: str = "") -> str:
        """The DSN of a new, empty database, which compares text as that language does, by default as bytes."""
        name = name or f"test_{next(self.numbers)}"
        order = f"TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE '{language}' LOCALE 'C'" if language else ""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {} " + order).format(sql.Identifier(name)))
        return self.dsn(name)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def postgres_dsn(postgres_server: PostgresServer) -> str:
    """A database of one's own."""
    return postgres_server.database()


@pytest.fixture(scope="session")
def s3() -> Iterator[ObjectStore]:
    """An object store that lets everybody in."""
    with object_store() as store:
        yield store
