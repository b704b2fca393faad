"""A Spark standalone cluster as local processes: a master and a worker, from the pip package of PySpark."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from replicator.domain.errors import EnvironmentProblem

from ..jvm.java import find_java_for_spark
from .layout import HOST, StackHome, StackPorts, find_free_port, is_free
from .processes import ProcessService, require_free, spawn_server

DAEMON_MEMORY = "-Xmx512m"
WORKER_MEMORY = "2g"
SCALA = "2.13"
# Packages that Spark's own launcher opens for Java 17 and newer.
OPENED = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
        "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs",
        "sun.security.action", "sun.util.calendar",
    )
)  # fmt: skip


def spark_services(home: StackHome) -> list[SparkService]:
    """The master and one worker of a stack."""
    return [spark_master(home), spark_worker(home, home.ports.spark_worker)]


def spark_master(home: StackHome) -> SparkService:
    """The master. Its address for drivers (`spark.master`) is `spark://127.0.0.1:<port>`."""
    ports = {"master": home.ports.spark, "page": home.ports.spark_page}
    arguments = ("--host", HOST, "--port", str(ports["master"]), "--webui-port", str(ports["page"]))
    return SparkService(home, "spark-master", "org.apache.spark.deploy.master.Master", arguments, ports)


def spark_worker(home: StackHome, page: int, name: str = "spark-worker") -> SparkService:
    """A worker with one core, and its page at port `page`. A master can have several workers."""
    master = f"spark://{HOST}:{home.ports.spark}"
    arguments = (
        *("--host", HOST, "--cores", "1", "--memory", WORKER_MEMORY, "--webui-port", str(page)),
        *("--work-dir", str(home.make_subfolder(name) / "work"), master),
    )
    return SparkService(home, name, "org.apache.spark.deploy.worker.Worker", arguments, {"page": page})


@contextmanager
def spark_cluster(project: Path, folder: Path, workers: int) -> Iterator[str]:
    """Run a master and `workers` workers with one core on free ports. Yields the master's address."""
    home = StackHome.in_project(project, folder, StackPorts.find_free())
    pages = [home.ports.spark_worker, *(find_free_port() for _ in range(1, workers))]
    services = [spark_master(home), *(spark_worker(home, page, f"spark-worker-{i}") for i, page in enumerate(pages, 1))]
    try:
        for service in services:
            service.start()
            service.wait()
        yield f"spark://{HOST}:{home.ports.spark}"
    finally:
        for service in reversed(services):
            service.kill()


class SparkService(ProcessService):
    """One daemon of a standalone cluster. It answers if it listens on all its ports. A worker's executors end with it."""

    def __init__(self, home: StackHome, name: str, main: str, arguments: tuple[str, ...], ports: Mapping[str, int]) -> None:
        super().__init__(home, name, ports)
        self._main = main
        self._arguments = arguments

    def start(self) -> None:
        if self._find_processes():
            return
        require_free(self.name, self.ports, self._home.ports)
        spark = spark_home()
        java = find_java_for_spark()
        command = [str(java), self._mark, DAEMON_MEMORY, *OPENED, "-cp", str(spark / "jars" / "*"), self._main]
        # The worker starts executors with its own environment. Without the Scala version, their launcher looks for build
        # folders.
        variables = {"SPARK_HOME": str(spark), "SPARK_LOCAL_IP": HOST, "SPARK_SCALA_VERSION": SCALA}
        environment = {**os.environ, **variables, "JAVA_HOME": str(java.parent.parent)}
        spawn_server([*command, *self._arguments], self.log, cwd=self._home.make_subfolder(self.name), env=environment)

    def _answers(self) -> bool:
        return not any(map(is_free, self.ports.values()))


def spark_home() -> Path:
    """The folder of the PySpark package. `EnvironmentProblem` if it is not installed."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EnvironmentProblem("PySpark is not installed", next_step="Run `pip install 'replicator[spark]'`.")
    return Path(spec.origin).parent
