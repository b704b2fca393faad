"""Ports, folders and databases of the embedded servers.

The defaults are the ports, names and development credentials in docker-compose.yml. A test compares both.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from itertools import count, cycle
from pathlib import Path
from typing import BinaryIO

from replicator.domain.errors import ConfigProblem

HOST = "127.0.0.1"
SUPERUSER = "postgres"
SUPERUSER_PASSWORD = "postgres"  # noqa: S105 - a development default, as in docker-compose.yml


@dataclass(frozen=True, slots=True)
class StackPorts:
    """TCP ports on 127.0.0.1, one per listener."""

    source: int = 5433
    datalake: int = 5434
    target: int = 5435
    kafka: int = 29092
    controller: int = 29093
    connect: int = 8083
    spark: int = 7077
    spark_page: int = 8081
    spark_worker: int = 8082

    @classmethod
    def parse(cls, text: str) -> StackPorts:
        """The defaults with some replaced: `source=25433,kafka=39092`. The broker's second port, `controller`, follows
        `kafka`: it is the next port that no other server uses. Raises `ConfigProblem` for other texts."""
        pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
        try:
            ports = {name.strip(): int(port) for name, _, port in pairs}
            if "kafka" in ports and "controller" not in ports:
                used = cls(**ports).mapping().values()
                ports["controller"] = next(port for port in count(ports["kafka"] + 1) if port not in used)
            return cls(**ports)
        except (TypeError, ValueError) as failure:
            names = ", ".join(f.name for f in fields(cls))
            raise ConfigProblem(
                f"{text!r} is not a list of ports.",
                next_step=f"Write name=port pairs separated by commas; names are {names}.",
            ) from failure

    @classmethod
    def from_environment(cls) -> StackPorts:
        """The defaults, with replacements from REPLICATOR_STACK_PORTS."""
        return cls.parse(os.environ.get("REPLICATOR_STACK_PORTS", ""))

    @classmethod
    def find_free(cls) -> StackPorts:
        """Ports of `find_free_port`."""
        return cls(*(find_free_port() for _ in fields(cls)))

    def environment(self) -> Mapping[str, str]:
        """The variables of the shipped config with the addresses of these servers."""
        dsns = {f"{name.upper()}_DSN": one.dsn(self.mapping()[name]) for name, one in DATABASES.items()}
        connect = f"http://{HOST}:{self.connect}"
        return {"KAFKA_BOOTSTRAP_SERVERS": f"localhost:{self.kafka}", **dsns, "CONNECT_URL": connect}

    def mapping(self) -> Mapping[str, int]:
        """The ports by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StackDatabase:
    """One PostgreSQL server of the stack: its database, the owner, and the init script."""

    name: str
    database: str
    user: str
    password: str
    init_script: str
    wal_level: str

    def dsn(self, port: int, database: str | None = None, *, superuser: bool = False) -> str:
        """A libpq URL as the owner, or as the server's superuser."""
        user, password = (SUPERUSER, SUPERUSER_PASSWORD) if superuser else (self.user, self.password)
        return f"postgresql://{user}:{password}@{HOST}:{port}/{database or self.database}"


DATABASES: Mapping[str, StackDatabase] = {
    d.name: d
    for d in (
        StackDatabase("source", "source_db", "source_user", "source_password", "source-init.sql", "logical"),
        StackDatabase("datalake", "datalake_db", "datalake_user", "datalake_password", "datalake-init.sql", "replica"),
        StackDatabase("target", "target_db", "target_user", "target_password", "target-init.sql", "replica"),
    )
}


@dataclass(frozen=True, slots=True)
class StackHome:
    """The folder and ports of one stack. `folder`: all files that the servers write.

    The absolute folder identifies the stack. Stacks with different folders and ports do not affect each other.
    """

    folder: Path
    ports: StackPorts

    @classmethod
    def in_project(cls, project: Path | str, folder: Path | str = ".embedded", ports: StackPorts | None = None) -> StackHome:
        """A home in `folder` (relative to the project), with all links in the path resolved."""
        return cls((Path(project) / folder).resolve(), ports or StackPorts.from_environment())

    def make_subfolder(self, *names: str) -> Path:
        """Create a subfolder that the database's user can read, independent of the caller's umask."""
        path = self.folder
        for name in ("", *names):
            path = path / name
            if not path.is_dir():
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(0o755)
        return path

    def process_mark(self, service: str) -> str:
        """The text that identifies the processes of a service in their command line."""
        return f"-Dreplicator.stack={self.folder}{os.pathsep}{service}"


_FREE_PORTS = range(20000, 32000)  # Below the ephemeral range: no outgoing connection uses a port before its server does.
_first = os.getpid() * 7417 % len(_FREE_PORTS)  # Golden section: processes started together begin far apart.
_candidates: Iterator[int] = cycle((*_FREE_PORTS[_first:], *_FREE_PORTS[:_first]))


def find_free_port() -> int:
    """A port that is free now. Its server may bind it much later. So this process does not find it again soon, and other
    processes of this user do not before this one ends."""
    return next(port for port in _candidates if _reserve(port) and is_free(port))


def _reserve(port: int) -> bool:
    reservations = _open_reservations()
    try:
        fcntl.lockf(reservations, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)  # The kernel frees it at the end.
    except (BlockingIOError, PermissionError):
        return False
    return True


@cache
def _open_reservations() -> BinaryIO:
    """The file of which processes lock a byte for each port that they have found."""
    return Path(tempfile.gettempdir(), f"replicator-ports-{os.getuid()}").open("ab")


def is_free(port: int) -> bool:
    """True if nothing listens on the port. Connections in TIME_WAIT do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
