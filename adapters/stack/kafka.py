"""Kafka as a local process: one node as broker and KRaft controller."""

from __future__ import annotations

import base64
import logging
import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from replicator.domain.errors import EnvironmentProblem

from ..jvm.jars import fetch_jars
from ..jvm.java import classpath, find_java
from .layout import HOST, StackHome, is_free
from .processes import (
    STOP_SECONDS,
    ProcessService,
    end_processes,
    find_processes,
    kill_processes,
    require_free,
    spawn_server,
)

SILENT = logging.Logger("kafka client of a health check", level=logging.CRITICAL)
MAX_MESSAGE_BYTES = 10_485_760
"""Limit for rows of 10 MB, in the broker and in Connect's producers."""
JAVA_OPTIONS = ("-Xms96m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
LOGGING = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
)

TOOLS: Mapping[str, str] = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
}
"""Kafka's own command-line tools, by the names of their scripts."""

BROKER: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "message.max.bytes": str(MAX_MESSAGE_BYTES),
    "auto.create.topics.enable": "true",
    "broker.session.timeout.ms": "4000",
}
"""Settings of a broker on any host, the same as in docker-compose.yml. A killed broker can only register again after its
old session, so the session timeout is short."""


def kafka_services(home: StackHome) -> list[KafkaService]:
    """The broker of a stack."""
    return [KafkaService(home)]


class KafkaService(ProcessService):
    """One KRaft node. It answers a metadata request on its client port. `settings`: more settings of the broker, which
    override the stack's."""

    def __init__(
        self,
        home: StackHome,
        *,
        java_options: Sequence[str] = JAVA_OPTIONS,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(home, "kafka", {"client": home.ports.kafka, "controller": home.ports.controller})
        self._settings = dict(settings or {})
        self._java_options = java_options
        self._format_mark = home.process_mark(f"{self.name} format")

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers` for clients."""
        return f"{HOST}:{self._home.ports.kafka}"

    def start(self) -> None:
        """Start the broker; format its log folder if there is none."""
        if self._find_processes():
            return
        require_free(self.name, self.ports, self._home.ports)
        jars = fetch_jars("kafka")
        folder = self._home.make_subfolder("kafka")
        if not (folder / "data").is_dir():
            self._format(folder, jars)
        config = self._configure(folder / "server.properties", folder / "data")
        java, *arguments = self._command(jars, "kafka.Kafka", str(config))
        spawn_server([java, self._mark, *arguments], self.log, cwd=folder, env=os.environ)

    def stop(self) -> None:
        end_processes([*self._find_processes(), *find_processes(self._format_mark)], STOP_SECONDS)

    def tool_command(self, tool: str, arguments: Sequence[str]) -> list[str]:
        """The command line that runs one of `TOOLS` against this broker."""
        quiet, jars = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", fetch_jars("kafka", "kafka-tools")
        java = str(find_java())
        return [java, quiet, "-cp", classpath(jars), TOOLS[tool], "--bootstrap-server", self.bootstrap, *arguments]

    def _command(self, jars: Sequence[Path], *main: str) -> list[str]:
        return [str(find_java()), *self._java_options, *LOGGING, "-cp", classpath(jars), *main]

    def _configure(self, path: Path, data: Path) -> Path:
        client, controller = self.ports["client"], self.ports["controller"]
        local_settings = {
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": f"PLAINTEXT://{HOST}:{client},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{client}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(data),
        }
        return write_properties(path, {**BROKER, **local_settings, **self._settings})

    def _format(self, folder: Path, jars: Sequence[Path]) -> None:
        """Format a folder with another name, then rename it: an existing log folder is complete."""
        scratch = folder / "data.new"
        kill_processes(find_processes(self._format_mark))  # left by a start that was killed
        shutil.rmtree(scratch, ignore_errors=True)
        config = self._configure(folder / "format.properties", scratch)
        java, *arguments = self._command(jars, "kafka.tools.StorageTool", "format", "-t", cluster_id(), "-c", str(config))
        run = subprocess.run([java, self._format_mark, *arguments], capture_output=True, text=True, cwd=folder, check=False)  # noqa: S603
        if run.returncode != 0:
            raise EnvironmentProblem(f"{self.name}: the log folder could not be formatted: {run.stderr.strip()[-2000:]}")
        scratch.rename(folder / "data")

    def _answers(self) -> bool:
        return not is_free(self.ports["client"]) and broker_answers(self.bootstrap)


def broker_answers(bootstrap: str) -> bool:
    """True if a broker answers a metadata request within two seconds."""
    try:
        return bool(AdminClient({"bootstrap.servers": bootstrap}, logger=SILENT).list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def cluster_id() -> str:
    """A new cluster id for the storage tool: 16 random bytes as 22 characters of URL-safe base64."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return text


def write_properties(path: Path, settings: Mapping[str, str]) -> Path:
    """Write a Java properties file, with backslashes in values escaped."""
    escaped = {name: value.replace("\\", "\\\\") for name, value in settings.items()}
    path.write_text("".join(f"{name}={value}\n" for name, value in escaped.items()))
    return path
