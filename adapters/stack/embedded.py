"""The embedded stack: all servers of a pipeline as local processes, on the ports of docker-compose.yml.

Running processes and files on disk are its only state. So `up` after a crash, or a second `up`, does only what is
missing.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TypeVar

from replicator.domain.errors import EnvironmentProblem
from replicator.local_files import FileLock, FileLocked
from replicator.ports.runtime import ServiceState, ServiceStatus
from replicator.shipped import find_shipped

from ..jvm.jars import fetch_jars
from .connect import ConnectorState, ConnectRest, ConnectService, NoAnswer, not_running, read_connector
from .kafka import KafkaService
from .layout import DATABASES, StackHome, StackPorts
from .postgres import PostgresService, create_database, create_publication, postgres_services
from .processes import ProcessService, listened_ports, read_logs, require_free
from .spark import spark_services

S = TypeVar("S")
CONNECTOR_FILE = find_shipped("connectors/postgres-source-connector.json")
WAIT_SECONDS = 120.0
LOCK_SECONDS = 300.0


class EmbeddedStack:
    """Three PostgreSQL servers, a broker and a Connect worker, started together in one folder.

    `folder` (relative to `project`, or absolute): all data and logs. Init scripts and the connector are the shipped ones.
    A second stack needs its own folder and `ports=StackPorts.find_free()`. `tell`: called from any thread with a line for
    people, when a slow step starts or a server is healthy.
    """

    def __init__(
        self,
        project: Path | str = ".",
        folder: Path | str = ".embedded",
        ports: StackPorts | None = None,
        *,
        services: Callable[[StackHome], Sequence[ProcessService]] | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._tell = tell
        self.home = StackHome.in_project(project, folder, ports)
        self.services: tuple[ProcessService, ...] = tuple((services or default_services)(self.home))
        # Ctrl-C ends the wait of `up` for its threads: they may still start a server when `down` is called.
        self._is_stopping = False
        self._changing = {service.name: Lock() for service in self.services}

    def up(self) -> None:
        """Start all stopped services in parallel, and return when all are healthy and initialised.

        Raises `EnvironmentProblem` for the first service that cannot start; the others keep running. If another program
        uses a port, or a service runs on other ports, nothing is started.
        """
        with self._lock_folder():
            states = self.status()
            if elsewhere := " ".join(state.detail for state in states if state.detail):
                raise EnvironmentProblem(elsewhere)
            stopped = [state for state in states if state.state is ServiceState.STOPPED]
            for state in stopped:
                # Accept the service's own server: a killed start may have launched it after the first look.
                try:
                    require_free(state.name, state.ports, self.home.ports)
                except EnvironmentProblem:
                    if self.service(state.name).status().state is ServiceState.STOPPED:
                        raise
            if stopped:
                self._tell(f"starting {', '.join(state.name for state in stopped)}")
            if any(isinstance(service, KafkaService | ConnectService) for service in self.services):
                fetch_jars("kafka", "connect", "debezium-postgres")  # Together, because these share many jars.
            self._is_stopping = False
            _run_on_all(self.services, self._bring_up)

    def down(self, *, clean: bool = False) -> None:
        """Stop all services, readers before their sources. No process is left. `clean` also deletes the data."""
        self._is_stopping = True
        with self._lock_folder():
            databases = [s for s in self.services if isinstance(s, PostgresService)]
            for service in reversed([s for s in self.services if s not in databases]):
                self._stop(service)
            _run_on_all(databases, self._stop)
            if clean:
                _run_on_all(databases, lambda service: service.erase())
                shutil.rmtree(self.home.folder, ignore_errors=True)

    def status(self) -> list[ServiceStatus]:
        """The states of all services, in start order. `detail` is set if one runs on unexpected ports."""
        with ThreadPoolExecutor(len(self.services)) as pool:
            return list(pool.map(lambda service: _describe_ports(service.status()), self.services))

    def read_logs(self, service: str | None = None, *, last: int = 50, follow: bool = False) -> Iterator[str]:
        """The last lines of one or all logs, as `name | line`; with `follow`, then all new lines for ever."""
        services = self.services if service is None else (self.service(service),)
        return read_logs({s.name: s.log for s in services}, last=last, follow=follow)

    def service(self, name: str) -> ProcessService:
        """The service with this name, to control it alone. `EnvironmentProblem` for an unknown name."""
        for service in self.services:
            if service.name == name:
                return service
        names = ", ".join(s.name for s in self.services)
        raise EnvironmentProblem(f"There is no service {name!r}.", next_step=f"There are: {names}.")

    def restart(self, name: str) -> None:
        """Start one service, for example after `service(name).kill()`, and return when it is healthy."""
        self._is_stopping = False
        self._bring_up(self.service(name))

    # -- addresses for clients ---------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The broker's address for Kafka clients."""
        return f"127.0.0.1:{self.home.ports.kafka}"

    def dsn(self, server: str, database: str | None = None, *, superuser: bool = False) -> str:
        """A libpq URL of `source`, `datalake` or `target`, as its user or as superuser."""
        return DATABASES[server].dsn(self.home.ports.mapping()[server], database, superuser=superuser)

    def create_database(self, server: str, name: str) -> str:
        """Create another database if it does not exist, owned by the server's user, and return its URL. On the source,
        also create the publication of the shipped connector."""
        create_database(self.dsn(server, "postgres", superuser=True), name, DATABASES[server].user)
        if server == "source":
            create_publication(self.dsn(server, name, superuser=True))
        return self.dsn(server, name)

    # -- connectors --------------------------------------------------------------------------------------------------

    @property
    def rest(self) -> ConnectRest:
        """Connect's REST interface."""
        return ConnectRest(self.home.ports.connect)

    def register_connector(
        self,
        file: Path | str = CONNECTOR_FILE,
        overrides: Mapping[str, str] | None = None,
        *,
        seconds: float = WAIT_SECONDS,
    ) -> str:
        """Register a connector file (the shipped one by default), or update an existing connector. Returns its name when
        it runs. A failed connector is restarted. `overrides` replace single settings; `name` renames the connector.
        """
        name, config = read_connector(Path(file), overrides)
        self._tell(f"registering connector {name}")
        register(self.rest, name, config, seconds)
        return name

    def connector(self, name: str) -> ConnectorState | None:
        """A connector's state; None if there is none."""
        return self.rest.state(name)

    @contextmanager
    def _lock_folder(self) -> Iterator[None]:
        """Allow one `up` or `down` at a time per folder. The system releases the lock if the caller dies."""
        lock = FileLock(self.home.folder / "lock")
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                self.home.make_subfolder()
                lock.acquire()
                break
            except (FileLocked, FileNotFoundError):  # Another process has the lock, or has just deleted the folder.
                if time.monotonic() > deadline:
                    raise EnvironmentProblem(
                        f"Another start or stop of the stack in {self.home.folder} does not end."
                    ) from None
                time.sleep(0.1)
        try:
            yield
        finally:
            lock.release()

    def _bring_up(self, service: ProcessService) -> None:
        began = time.monotonic()
        with self._changing[service.name]:
            if self._is_stopping:
                raise EnvironmentProblem(f"{service.name} was not started: the stack is being stopped.")
            service.start()
        service.wait(WAIT_SECONDS)
        self._tell(f"{service.name} is healthy ({time.monotonic() - began:.1f} s)")

    def _stop(self, service: ProcessService) -> None:
        with self._changing[service.name]:
            service.stop()


def _describe_ports(state: ServiceStatus) -> ServiceStatus:
    """The state, with a `detail` if the ports are unexpected. Spark workers also use a random port, so they are skipped."""
    open_ports = set() if state.pid is None or state.name == "spark-worker" else listened_ports(state.pid)
    if not open_ports or not open_ports.isdisjoint(state.ports.values()):
        return state
    actual, expected = (", ".join(map(str, sorted(ports))) for ports in (open_ports, state.ports.values()))
    step = "Set REPLICATOR_STACK_PORTS as when the services were started, or run `replicator stack down` first."
    return replace(state, detail=f"{state.name} runs on port {actual}, not on {expected}. {step}")


def default_services(home: StackHome) -> list[ProcessService]:
    """The databases, the broker and the worker, in start order, and the Spark cluster if it runs."""
    spark = [service for service in spark_services(home) if service.status().pid is not None]
    return [*postgres_services(home), KafkaService(home), ConnectService(home), *spark]


def with_spark(home: StackHome) -> list[ProcessService]:
    """All services, and a Spark cluster."""
    return [*postgres_services(home), KafkaService(home), ConnectService(home), *spark_services(home)]


def register(rest: ConnectRest, name: str, config: Mapping[str, str], seconds: float) -> None:
    """Set the connector's config, resume it if paused, restart it if failed, and wait until it runs."""
    try:
        rest.put(name, config)
        state = rest.state(name)
        if state is not None and state.paused:
            rest.resume(name)
        if state is not None and state.failed:
            rest.restart(name)
        rest.wait_running(name, seconds, before=state)
    except NoAnswer as failure:
        raise EnvironmentProblem(f"Kafka Connect: {failure}.", next_step="Run `replicator stack up`.") from failure


def require_running(rest: ConnectRest, name: str) -> ConnectorState:
    """The state of a running connector. Otherwise raises `EnvironmentProblem` with its trace."""
    try:
        state = rest.state(name)
    except NoAnswer as failure:
        raise EnvironmentProblem(f"Kafka Connect: {failure}.", next_step="Run `replicator stack up`.") from failure
    if state is None or not state.running:
        raise not_running(name, state)
    return state


def _run_on_all(services: Sequence[S], action: Callable[[S], None]) -> None:
    """Run the action on all services in parallel. All end before the first error is raised."""
    if not services:
        return
    with ThreadPoolExecutor(len(services)) as pool:
        running = [pool.submit(action, service) for service in services]
    for future in running:
        future.result()
