"""The port of a server that the pipeline needs (a database, a broker), run as a local process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class ServiceState(StrEnum):
    """The state of a service. `starting`: its process runs but does not answer."""

    STOPPED = "stopped"
    STARTING = "starting"
    HEALTHY = "healthy"


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The status of one service. `pid` is its process, None when stopped. `ports` are the ports it listens on, by
    purpose, on 127.0.0.1. `detail` is one sentence for people, or empty."""

    name: str
    state: ServiceState
    pid: int | None
    ports: Mapping[str, int]
    log: Path
    detail: str = ""


class Service(Protocol):
    """One server as a local process that outlives the caller. An entry point of group `replicator.services` is a callable
    from the stack's home (its folders and ports) to a list of services of one kind.

    Every method may be called at any time, also by another process than the one that started the service. An earlier
    call may have been killed half-way. Only running processes and files on disk count, never the state of this object. A
    service MUST NOT change anything outside its own folder and its own ports (`tests/integration`, two stacks side by
    side).
    """

    @property
    def name(self) -> str:
        """A unique name among the services of one stack; the argument of `logs SERVICE`."""

    @property
    def ports(self) -> Mapping[str, int]:
        """The ports it listens on, by purpose, all on 127.0.0.1."""

    @property
    def log(self) -> Path:
        """The log file of the server. It MUST exist once `start` has returned, and may be empty."""

    def start(self) -> None:
        """Start the server; returns before it is healthy. A no-op if it runs.

        Raises `EnvironmentProblem` with one sentence and the next step if a dependency is missing, or if another
        program uses a port.
        """

    def wait(self, seconds: float) -> None:
        """Return once the server answers and its data is initialised. Data is initialised exactly once.

        Raises `EnvironmentProblem` with the end of the log if the server died or did not answer in time.
        """

    def status(self) -> ServiceStatus:
        """The current state, read from the server itself. Never raises, returns within about two seconds."""

    def stop(self) -> None:
        """Stop the server cleanly, or by force after a grace period; returns when no process of it is left. Data stays.

        A no-op when stopped.
        """

    def kill(self) -> None:
        """Send SIGKILL to all its processes; returns when none is left. For fault tests; `start` MUST recover from it."""


class Stack(Protocol):
    """All servers of a project, started and stopped together. Reached by entry point, group `replicator.stacks`."""

    def up(self) -> None:
        """Start all stopped services; return when all are healthy and initialised. A no-op if they are.

        Raises `EnvironmentProblem` if a service cannot start; running services stay up.
        """

    def down(self, *, clean: bool = False) -> None:
        """Stop all services; no process is left. `clean` also removes the data."""

    def status(self) -> Sequence[ServiceStatus]:
        """The state of every service, in start order."""

    def register_connector(self) -> str:
        """Register the shipped source connector, again if necessary; returns its name once it runs.

        Raises `EnvironmentProblem` with the start of its stack trace if it fails.
        """

    def read_logs(self, service: str | None = None, *, last: int = 50, follow: bool = False) -> Iterator[str]:
        """The last lines of one service's log, or of all logs, as `name | line`. With `follow`, all new lines follow,
        forever.

        Raises `EnvironmentProblem` with the names of all services if the service is unknown.
        """
