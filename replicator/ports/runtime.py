"""The ports of a running program: metrics, servers, checks, lineage, and the local servers of a project."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from replicator.domain.events import AppendedEvent, NewEvent
from replicator.domain.policy.plan import Counts

from .reads import ReadSide
from .source import Pace
from .stores import DeadLetterGroup

# Metrics. They are by name of source and lane, never by key or offset.


class Measurement:
    """A value for a counter or a gauge. A later version may have more of them: telemetry skips those that it lacks."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class RecordsRead(Measurement):
    """Records read from a source. `ignored`: those that contain no change of a table, by their kind."""

    source: str
    records: int
    ignored: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RecordsRejected(Measurement):
    """Rejected records; `table` is empty if it is not known. The application limits the number of tables and codes."""

    source: str
    table: str
    stage: str
    code: str
    records: int


@dataclass(frozen=True, slots=True)
class OpenDeadLetters(Measurement):
    """The number of open dead letters; groups that are not in `counts` have none."""

    counts: Mapping[DeadLetterGroup, int]


@dataclass(frozen=True, slots=True)
class LaneCommitted(Measurement):
    """One apply of a lane took `seconds`; `counts` are its changes by their outcome. `newest` is its greatest event time, in
    microseconds since 1970."""

    lane: str
    counts: Counts
    seconds: float
    newest: int | None


@dataclass(frozen=True, slots=True)
class LaneUp(Measurement):
    """The lane runs, or else is suspended or paused."""

    lane: str
    up: bool


@dataclass(frozen=True, slots=True)
class SourceLag(Measurement):
    """Records between the lowest lane and the end of the source; None if it is not known."""

    source: str
    records: int | None


@dataclass(frozen=True, slots=True)
class StreamPace(Measurement):
    """The progress of a source's stream, which `engine` runs."""

    source: str
    engine: str
    pace: Pace


@dataclass(frozen=True, slots=True)
class TargetCompared(Measurement):
    """The last comparison of a target began `at` (seconds since 1970), and found `rows` that differ, by their kind."""

    lane: str
    at: float
    rows: Mapping[str, int]


class Telemetry(Protocol):
    """Counters and gauges."""

    def record(self, measured: Measurement) -> None:
        """Add to a counter, or set a gauge. Never raises, never blocks."""


# Servers: the daemon's page, and the HTTP server for other programs.


Served_contra = TypeVar("Served_contra", contravariant=True)


class Server(Protocol[Served_contra]):
    """Serves the daemon's page and its metrics (`Views`), or other programs (`Endpoints`), until it is closed."""

    def start(self, served: Served_contra) -> str:
        """Serve in the background; returns the address. `EnvironmentProblem` if the address is already in use. For
        `Endpoints`, ConfigProblem if other users could write without a token, or other machines could read without
        one."""

    def close(self) -> None:
        """Accept no more requests, and return when all accepted requests are answered; may be called twice."""


Status = Mapping[str, Any]
"""A JSON-ready snapshot. Its `ready` is true if every lane runs or catches up; otherwise `unready` has one reason per
lane."""


@dataclass(frozen=True, slots=True)
class Views:
    """The calls of the daemon's page into the running daemon. Each is safe from any thread, and cheap except `control`.

    `alive` is false if the pipeline has made no progress for a while. `control(action, lane, argument)` runs a lane
    command and waits for it, for at most half a minute; `ReplicatorError` if it failed.
    """

    status: Callable[[], Status]
    alive: Callable[[], bool]
    control: Callable[[str, str, str | None], None]


ShowLine = Callable[[str], None]
"""Shows the user of a command one line about its progress."""

ShowProgress = Callable[[Any], AbstractContextManager[Any]]
"""Shows the progress of a pipeline while the block runs, from its status reporter."""

Emit = Callable[[Sequence[NewEvent]], Sequence[AppendedEvent]]
"""Stores events, from any thread; raises as `ports.stores.EventStore.append` and `InvalidEvent`."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The calls of other programs: `emit` stores their events, None if events are not accepted; `reads` returns rows."""

    emit: Emit | None
    reads: ReadSide


# The checks of `doctor`.


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one check. `sentence` describes the finding, `next_step` how to fix it unless it is `ok`."""

    severity: Literal["ok", "warning", "error"]
    subject: str
    sentence: str
    next_step: str = ""


class Check(Protocol):
    """Checks one kind of thing (a broker, a source database, a target, a lake, a Java runtime).

    An entry point of group `replicator.checks` is a callable that returns a check. Its arguments are the name in the
    config, and the keys under it with secrets in clear text. Findings never raise. A check never changes anything
    permanently, and ends within seconds if nothing answers.
    """

    def diagnose(self) -> Sequence[Diagnosis]:
        """All findings, good and bad, in a useful order for reading."""


@dataclass(frozen=True, slots=True)
class WrongOption:
    """An option of an engine that users must not set. It has a name, a problem (the rest of a sentence that starts with
    the name), and a next step. Never contains the value."""

    name: str
    problem: str
    next_step: str


OptionsCheck: TypeAlias = Callable[[Iterable[str]], Sequence[WrongOption]]
"""Checks the names of an engine's options without the engine. Registered under the engine's name."""


# Lineage: the service that records from which tables a table was computed.


class Lineage(Protocol):
    """Receives OpenLineage run events, as plain values."""

    def send_event(self, event: Mapping[str, Any]) -> None:
        """Send an event. `Retryable` or `EnvironmentProblem` if that fails."""


# Servers that the pipeline needs (databases, a broker), run as local processes.


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
