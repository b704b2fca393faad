"""A Spark standalone cluster as local processes: a master and a worker, from the pip package of PySpark."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from replicator.domain.errors import EnvironmentProblem
from replicator.ports.runtime import ServiceState, ServiceStatus

from ..jvm.java import find_java_for_spark
from .layout import HOST, StackHome, StackPorts, is_free
from .processes import (
    await_condition,
    end_processes,
    find_processes,
    kill_processes,
    not_ready_error,
    require_free,
    spawn_server,
)

START_SECONDS = 60
STOP_SECONDS = 20
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


def spark_worker(home: StackHome, page: int, name: str = "spark-worker", *, cores: int = 1) -> SparkService:
    """A worker with its page at port `page`. A master can have several workers."""
    master = f"spark://{HOST}:{home.ports.spark}"
    arguments = (
        *("--host", HOST, "--cores", str(cores), "--memory", WORKER_MEMORY, "--webui-port", str(page)),
        *("--work-dir", str(home.make_subfolder(name) / "work"), master),
    )
    return SparkService(home, name, "org.apache.spark.deploy.worker.Worker", arguments, {"page": page})


@contextmanager
def spark_cluster(project: Path, folder: Path, workers: int) -> Iterator[str]:
    """Run a master and `workers` workers with one core on free ports. Yields the master's address."""
    home = StackHome.in_project(project, folder, StackPorts.find_free())
    pages = [home.ports.spark_worker, *(StackPorts.find_free().spark_worker for _ in range(1, workers))]
    services = [spark_master(home), *(spark_worker(home, page, f"spark-worker-{i}") for i, page in enumerate(pages, 1))]
    try:
        for service in services:
            service.start()
            service.wait()
        yield f"spark://{HOST}:{home.ports.spark}"
    finally:
        for service in reversed(services):
            service.kill()


class SparkService:
    """`Service` of one daemon of a standalone cluster. It is `healthy` if it listens on all its ports."""

    def __init__(self, home: StackHome, name: str, main: str, arguments: tuple[str, ...], ports: Mapping[str, int]) -> None:
        self._home = home
        self._name = name
        self._main = main
        self._arguments = arguments
        self._ports = ports
        self._mark = home.process_mark(name)

    @property
    def name(self) -> str:
        """`spark-master`, `spark-worker`, or another worker's name."""
        return self._name

    @property
    def ports(self) -> Mapping[str, int]:
        """`page`; for the master also `master`."""
        return self._ports

    @property
    def log(self) -> Path:
        """The daemon's console output."""
        return self._home.make_subfolder(self._name) / "server.log"

    def start(self) -> None:
        if find_processes(self._mark):
            return
        require_free(self._name, self._ports, self._home.ports)
        spark = spark_home()
        java = find_java_for_spark()
        command = [str(java), self._mark, DAEMON_MEMORY, *OPENED, "-cp", str(spark / "jars" / "*"), self._main]
        # The worker starts executors with its own environment. Without the Scala version, their launcher looks for build
        # folders.
        variables = {"SPARK_HOME": str(spark), "SPARK_LOCAL_IP": HOST, "SPARK_SCALA_VERSION": SCALA}
        environment = {**os.environ, **variables, "JAVA_HOME": str(java.parent.parent)}
        spawn_server([*command, *self._arguments], self.log, cwd=self._home.make_subfolder(self._name), env=environment)

    def wait(self, seconds: float = START_SECONDS) -> None:
        if not await_condition(self._listens, seconds, alive=lambda: bool(find_processes(self._mark))):
            raise not_ready_error(self._name, self.log, seconds)

    def status(self) -> ServiceStatus:
        running = find_processes(self._mark)
        state = ServiceState.STARTING if running else ServiceState.STOPPED
        if running and self._listens():
            state = ServiceState.HEALTHY
        return ServiceStatus(self._name, state, running[0].pid if running else None, self._ports, self.log)

    def stop(self) -> None:
        end_processes(find_processes(self._mark), STOP_SECONDS)

    def kill(self) -> None:
        """Kill the daemon. A worker's executors end with it."""
        kill_processes(find_processes(self._mark))

    def _listens(self) -> bool:
        return not any(map(is_free, self._ports.values()))


def spark_home() -> Path:
    """The folder of the PySpark package. `EnvironmentProblem` if it is not installed."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EnvironmentProblem("PySpark is not installed", next_step="Run `pip install 'replicator[spark]'`.")
    return Path(spec.origin).parent
