"""Kafka Connect with Debezium connectors as a local process: one distributed worker."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from replicator.ports.service import ServiceState, ServiceStatus

from ..jvm.jars import fetch_jars, is_linked, link_plugin
from ..jvm.java import classpath, find_java
from .connect_rest import ConnectRest
from .kafka import LOGGING, MAX_MESSAGE_BYTES, write_properties
from .layout import DATABASES, HOST, StackHome
from .processes import (
    await_condition,
    end_processes,
    find_processes,
    kill_processes,
    not_ready_error,
    require_free,
    spawn_server,
)

START_SECONDS = 120
STOP_SECONDS = 20
JAVA_OPTIONS = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options for a fast start and little memory. Benchmarks through Connect should not limit the compiler."""
CONNECTORS = ("debezium-postgres",)

WORKER: Mapping[str, str] = {
    "group.id": "cdc-connect",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "true",
    "value.converter.schemas.enable": "true",
    "offset.storage.topic": "_connect_offsets",
    "offset.storage.replication.factor": "1",
    "offset.storage.partitions": "1",
    "config.storage.topic": "_connect_configs",
    "config.storage.replication.factor": "1",
    "status.storage.topic": "_connect_status",
    "status.storage.replication.factor": "1",
    "status.storage.partitions": "1",
    "offset.flush.interval.ms": "1000",
    "scheduled.rebalance.max.delay.ms": "0",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "2000",
    "connector.client.config.override.policy": "All",
    "producer.max.request.size": str(MAX_MESSAGE_BYTES),
    "plugin.discovery": "service_load",
    "config.providers": "env",
    "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
    "config.providers.env.param.allowlist.pattern": "SOURCE_.*",
}
"""Settings of a worker on any host, the same as in docker-compose.yml. With the short session timeout, the replacement of
a killed worker gets its connectors in seconds. The `env` provider fills `${env:SOURCE_...}` in connector files, so one
file works on every host, and Connect stores no passwords."""


def connect_services(home: StackHome) -> list[ConnectService]:
    """The Connect worker of a stack."""
    return [ConnectService(home)]


class ConnectService:
    """`Service` of one Connect worker. It is `healthy` if its REST interface lists connectors. `settings`: more settings of
    the worker, which override the stack's."""

    def __init__(
        self,
        home: StackHome,
        *,
        java: Path | None = None,
        java_options: Sequence[str] = JAVA_OPTIONS,
        connectors: Sequence[str] = CONNECTORS,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._more = dict(settings or {})
        self._home = home
        self._java = java
        self._java_options = java_options
        self._connectors = connectors
        self._mark = home.process_mark(self.name)

    @property
    def name(self) -> str:
        """`debezium`, as in docker-compose.yml."""
        return "debezium"

    @property
    def ports(self) -> Mapping[str, int]:
        """One: `rest`."""
        return {"rest": self._home.ports.connect}

    @property
    def log(self) -> Path:
        """The worker's console output."""
        return self._home.make_subfolder("debezium") / "worker.log"

    @property
    def rest(self) -> ConnectRest:
        """The worker's REST interface."""
        return ConnectRest(self._home.ports.connect)

    def start(self) -> None:
        """Start the worker. It waits for the broker by itself. A worker with connectors of an older lock is restarted with
        the current ones, since old connectors may lose more data."""
        folder = self._home.make_subfolder("debezium")
        if find_processes(self._mark):
            if all(is_linked(connector, folder / "plugins" / connector) for connector in self._connectors):
                return
            self.stop()
        require_free(self.name, self.ports, self._home.ports)
        jars = fetch_jars("connect")
        for connector in self._connectors:
            link_plugin(connector, folder / "plugins" / connector)
        config = write_properties(folder / "worker.properties", self._settings(folder / "plugins"))
        options = (self._mark, *self._java_options, *LOGGING)
        main = ("org.apache.kafka.connect.cli.ConnectDistributed", str(config))
        command = [str(self._java or find_java()), *options, "-cp", classpath(jars), *main]
        spawn_server(command, self.log, cwd=folder, env={**os.environ, **self.environment()})

    def wait(self, seconds: float = START_SECONDS) -> None:
        if not await_condition(self.rest.answers, seconds, alive=lambda: bool(find_processes(self._mark))):
            raise not_ready_error(self.name, self.log, seconds)

    def status(self) -> ServiceStatus:
        running = find_processes(self._mark)
        state = ServiceState.STARTING if running else ServiceState.STOPPED
        if running and self.rest.answers():
            state = ServiceState.HEALTHY
        return ServiceStatus(self.name, state, running[0].pid if running else None, self.ports, self.log)

    def stop(self) -> None:
        end_processes(find_processes(self._mark), STOP_SECONDS)

    def kill(self) -> None:
        kill_processes(find_processes(self._mark))

    def environment(self) -> Mapping[str, str]:
        """The values of `${env:...}` in connector files."""
        source = DATABASES["source"]
        return {
            "SOURCE_DB_HOST": HOST,
            "SOURCE_DB_PORT": str(self._home.ports.source),
            "SOURCE_DB_NAME": source.database,
            "SOURCE_DB_USER": source.user,
            "SOURCE_DB_PASSWORD": source.password,
            # By this name in connectors that `replicator init` writes. Another source's password may be in the environment.
            "SOURCE_PASSWORD": os.environ.get("SOURCE_PASSWORD", source.password),
        }

    def _settings(self, plugins: Path) -> Mapping[str, str]:
        here = {
            "bootstrap.servers": f"{HOST}:{self._home.ports.kafka}",
            "listeners": f"http://{HOST}:{self._home.ports.connect}",
            "rest.advertised.host.name": HOST,
            "plugin.path": str(plugins),
        }
        return {**WORKER, **here, **self._more}
