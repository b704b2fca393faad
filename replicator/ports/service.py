"""The port to a server the pipeline needs beside it (a database, a broker), run as a local process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class ServiceState(StrEnum):
    """What a service is doing. `starting`: its process runs, and it does not answer yet (or no longer)."""

    STOPPED = "stopped"
    STARTING = "starting"
    HEALTHY = "healthy"


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One service now. `pid` is its process, None when stopped; `ports` are what it listens on, by purpose, on 127.0.0.1;
    `detail` is one sentence for people, empty when there is nothing to say."""

    name: str
    state: ServiceState
    pid: int | None
    ports: Mapping[str, int]
    log: Path
    detail: str = ""


class Service(Protocol):
    """One server as a local process that outlives the caller. An entry point of group `replicator.services` gives the
    services of one kind: a callable that takes the stack's home (its folders and ports) and returns a list of them.

    Every method may be called again at any time, by another process than the one that started the service, and after
    any of them was killed half way: the truth is what runs and what is on disk, never what this object remembers.
    A service MUST NOT touch anything outside its own folder and its own ports
    (`tests/integration`, two stacks side by side).
    """

    @property
    def name(self) -> str:
        """Unique among the services of one stack; what `logs SERVICE` takes."""

    @property
    def ports(self) -> Mapping[str, int]:
        """What it listens on, by purpose, all on 127.0.0.1."""

    @property
    def log(self) -> Path:
        """The file its output goes to. It MUST exist once `start` has returned, and may be empty."""

    def start(self) -> None:
        """Launch the server; returns before it is healthy. A no-op when it runs.

        Raises `EnvironmentProblem` with one sentence and the next step when something it needs is missing or a port is
        taken by another program.
        """

    def wait(self, seconds: float) -> None:
        """Return once the server answers and its data are initialised (initialisation is applied exactly once).

        Raises `EnvironmentProblem` with the end of its log when it died or did not answer in time.
        """

    def status(self) -> ServiceStatus:
        """Its state now, asked from the server itself. Never raises, returns within about two seconds."""

    def stop(self) -> None:
        """Stop it cleanly, by force after a grace period; returns when no process of it is left. Data are kept.

        A no-op when stopped.
        """

    def kill(self) -> None:
        """SIGKILL to all its processes; returns when none is left. For fault tests; `start` MUST recover from it."""


class Stack(Protocol):
    """All servers of a project, started and stopped together. Reached by entry point, group `replicator.stacks`."""

    def up(self) -> None:
        """Start what does not run, and return when all is healthy and initialised. A no-op when all is.

        Raises `EnvironmentProblem` when a service cannot start; those that run are left running.
        """

    def down(self, *, clean: bool = False) -> None:
        """Stop all; no process is left. `clean` also removes the data."""

    def status(self) -> Sequence[ServiceStatus]:
        """The state of every service, in start order."""

    def register_connector(self) -> str:
        """Register the project's source connector, again if need be; its name once it runs.

        Raises `EnvironmentProblem` with the head of its trace when it fails.
        """

    def read_logs(self, service: str | None = None, *, last: int = 50, follow: bool = False) -> Iterator[str]:
        """The last lines of one service's log, or of all, as `name | line`; with `follow`, then every new line for ever.

        Raises `EnvironmentProblem` that names the services there are for an unknown one.
        """
