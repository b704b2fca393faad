"""The one place that makes a Spark session."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import cast

from pyspark.sql import SparkSession

from replicator.domain.errors import ConfigProblem

from ..delta.folders import Folder
from ..jvm.jars import fetch_jars, find_groups
from ..jvm.java import find_java_for_spark
from ..object_store.options import Storage
from .object_stores import configure_store
from .options import FIXED, find_wrong_options

HERE = "127.0.0.1"
PACKAGES = ("replicator", "adapters")
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
TO_STDERR = "-Xlog:disable -Xlog:all=warning:stderr"
"""Java's own warnings; they would stand in the middle of what a command prints."""
SHIPPED = "_replicator_shipped"
CORES = os.cpu_count() or 1
DEFAULTS: Mapping[str, str] = {
    "spark.app.name": "replicator",
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
    # Tables of a small deployment: a task per core instead of Spark's 200 and Delta's 50.
    "spark.sql.shuffle.partitions": str(CORES),
    "spark.databricks.delta.snapshotPartitions": str(CORES),
    # Into so many tasks a VACUUM splits what it finds, also of a table of ten files: Spark's 10,000 take minutes.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(8 * CORES),
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    # A batch's statements have more than Spark's 100 pieces of code: each was compiled, and warmed up, again in every batch.
    "spark.sql.codegen.cache.maxEntries": "5000",
    # What is kept of a batch is read twice or three times: looking for a shorter form of it costs more than it saves.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}
LOCAL: Mapping[str, str] = {
    # A stage at a time, each planned anew: there is nothing to win from it where shuffles have a task per core.
    "spark.sql.adaptive.enabled": "false",
    # Where cores are few, one that compiles better code or collects garbage beside the work is a core less for the work.
    **({JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseParallelGC"} if CORES <= 4 else {}),
}
"""Further defaults where driver and executors are one process."""


class LazySession:
    """The session of this program, made when it is first asked for."""

    def __init__(self, options: Mapping[str, object], stores: Iterable[str] = ()) -> None:
        self._options = options
        self._stores = stores
        self._reached: list[tuple[Folder, Storage | None]] = []

    def add_store(self, folder: Folder, storage: Storage | None) -> None:
        """The session is to reach what lies in `folder`; said before the session is asked for."""
        self._reached.append((folder, storage))

    @cached_property
    def spark(self) -> SparkSession:
        """ConfigProblem as of `object_stores.configure_store`."""
        made = open_session(self._options, self._stores)
        for folder, storage in self._reached:
            configure_store(made, folder, storage)
        return made


def split_options(options: Mapping[str, object]) -> tuple[dict[str, object], SparkSession]:
    """An adapter's own options, and the session that options `spark` (any Spark option) and `stores` (the schemes of the
    object stores that some adapter of the program reaches) ask for."""
    own, later = split_options_lazily(options)
    return own, later.spark


def split_options_lazily(options: Mapping[str, object]) -> tuple[dict[str, object], LazySession]:
    """As `split_options`, for adapters that can do some of their work without Spark."""
    own = dict(options)
    asked, stores = own.pop("spark", None) or {}, own.pop("stores", ())
    if not isinstance(asked, Mapping):
        raise ConfigProblem("option spark is a mapping of Spark's own options")
    return own, LazySession(asked, cast(Iterable[str], stores))


def open_session(options: Mapping[str, object], stores: Iterable[str] = ()) -> SparkSession:
    """The session of this program, made at the first call with `options` (any Spark option) over the defaults, and with the
    jars that `stores` need.

    Nothing is resolved while it starts: its jars are locked, and on this machine before. Raises `ConfigProblem` for an
    option that is not the user's to set, `EnvironmentProblem` without a Java that Spark runs on or a jar that is locked.
    """
    for found in find_wrong_options(options):
        raise ConfigProblem(f"spark option {found.name} {found.problem}", next_step=f"{found.next_step.capitalize()}.")
    os.environ["JAVA_HOME"] = str(find_java_for_spark().parent.parent)
    _choose_python(options.get("spark.pyspark.python"))
    asked = {name: str(value) for name, value in options.items()}
    local = _is_local(asked.get("spark.master", DEFAULTS["spark.master"]))
    settings = {**DEFAULTS, **(LOCAL if local else {}), **asked, **FIXED}
    quiet = f"-Dlog4j2.configurationFile=file:{Path(__file__).with_name('log4j2.properties')}"
    settings[JAVA_OPTIONS] = f"{quiet} {TO_STDERR} {settings.get(JAVA_OPTIONS, '')}".strip()
    if local or HERE in settings["spark.master"]:
        os.environ.setdefault("SPARK_LOCAL_IP", HERE)
    jars = ",".join(map(str, fetch_jars("spark", *find_groups(stores))))
    builder = SparkSession.builder.config("spark.jars", jars)
    for name, value in settings.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    _ship_code(made)
    return made


def _choose_python(asked: object) -> None:
    """What executors run. PySpark looks at the environment only; as in `spark-submit`, the option stands above it."""
    if asked is not None:
        os.environ["PYSPARK_PYTHON"] = str(asked)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _ship_code(spark: SparkSession) -> None:
    """Give the executors of a cluster this program's code, once per session. What it needs besides (`msgspec`, `pyarrow`)
    must be in the Python they run."""
    context = spark.sparkContext
    if _is_local(context.master or "") or getattr(context, SHIPPED, False):
        return
    # Executors fetch it from there whenever one starts.
    folder = Path(tempfile.mkdtemp(prefix="replicator-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    context.addPyFile(str(zip_packages(folder / "replicator-code.zip")))
    setattr(context, SHIPPED, True)


def _is_local(master: str) -> bool:
    return master.startswith("local")


def zip_packages(target: Path) -> Path:
    """The packages `replicator` and `adapters` as one archive that Python imports from."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for root in map(Path, import_module(package).__path__):
                for file in sorted(root.rglob("*")):
                    if file.is_file() and "__pycache__" not in file.parts:
                        archive.write(file, str(Path(package) / file.relative_to(root)))
    return target
