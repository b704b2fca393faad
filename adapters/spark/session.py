"""Creates the Spark session, and gives it access to object stores. No other module does."""

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
from typing import Any, cast
from urllib.parse import unquote

from pyspark.sql import SparkSession

from replicator.domain.errors import ConfigProblem
from replicator.ports.adapter_options import AdapterOptions
from replicator.ports.options import StorageSettings

from ..delta.folders import Folder
from ..jvm.jars import fetch_jars, find_groups
from ..jvm.java import find_java_for_spark
from ..object_store.options import CONNECT_SECONDS, RETRIES, SCHEMES, Storage, split_url
from .options import FIXED, find_wrong_options

HERE = "127.0.0.1"
PACKAGES = ("replicator", "adapters")
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
TO_STDERR = "-Xlog:disable -Xlog:all=warning:stderr"
"""Sends Java's own warnings to stderr, so that they do not mix with the output of a command."""
SHIPPED = "_replicator_shipped"
CORES = os.cpu_count() or 1
DEFAULTS: Mapping[str, str] = {
    "spark.app.name": "replicator",
    "spark.master": "local[*]",
    "spark.driver.memory": "2g",
    # Tables of a small deployment: a task per core instead of Spark's 200 and Delta's 50.
    "spark.sql.shuffle.partitions": str(CORES),
    "spark.databricks.delta.snapshotPartitions": str(CORES),
    # A VACUUM always uses this number of tasks, even for ten files. Spark's 10,000 take minutes.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(8 * CORES),
    # On a local disk Hadoop starts processes for each file that it renames (`readlink`, `chmod`), and as many again for its
    # checksum, which Delta removes from its log at once.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    # A batch needs more than Spark's 100 compiled classes: each was compiled again in every batch.
    "spark.sql.codegen.cache.maxEntries": "5000",
    # Cached frames are read two or three times, so compressing them costs more than it saves.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Spark measures an Arrow batch before each row, which visits every null list since the last list that is not null.
    # 100,000 records without headers cost 5.8 CPU seconds in batches of Spark's 10,000 rows, 1.1 in batches of 1,000.
    # Decoders are as fast with either (both measured).
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
}
LOCAL: Mapping[str, str] = {
    # Adaptive planning gains nothing when shuffles have one task per core.
    "spark.sql.adaptive.enabled": "false",
    # With few cores, background compilation and garbage collection would use cores that the work needs.
    **({JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseParallelGC"} if CORES <= 4 else {}),
}
"""Additional defaults when driver and executors are one process."""


class LazySession:
    """The session of this program, created at its first use."""

    def __init__(self, options: Mapping[str, object], stores: Iterable[str] = ()) -> None:
        self._options = options
        self._stores = stores
        self._reached: list[tuple[Folder, StorageSettings | None]] = []

    def add_store(self, folder: Folder, storage: StorageSettings | None) -> None:
        """Registers the store of `folder`, before the session is used."""
        self._reached.append((folder, storage))

    @cached_property
    def spark(self) -> SparkSession:
        """Raises ConfigProblem as `configure_store`."""
        session = open_session(self._options, self._stores)
        for folder, storage in self._reached:
            configure_store(session, folder, storage)
        return session


def split_options(options: AdapterOptions | Mapping[str, Any]) -> tuple[Any, SparkSession]:
    """An adapter's own options, and the session for the options `spark` (any Spark option) and `stores`. A model has both in
    its own fields.

    `stores`: the schemes of the object stores that some adapter of the program uses.
    """
    own, later = split_options_lazily(options)
    return own, later.spark


def split_options_lazily(options: AdapterOptions | Mapping[str, Any]) -> tuple[Any, LazySession]:
    """`split_options` for adapters that can do some of their work without Spark."""
    if isinstance(options, AdapterOptions):
        return options, LazySession(options.session or {}, options.stores)
    own = dict(options)
    settings, stores = own.pop("spark", None) or {}, own.pop("stores", ())
    if not isinstance(settings, Mapping):
        raise ConfigProblem("option spark is a mapping of Spark's own options")
    return own, LazySession(settings, cast(Iterable[str], stores))


def open_session(options: Mapping[str, object], stores: Iterable[str] = ()) -> SparkSession:
    """The session of this program, created at the first call with `options` (any Spark option) over the
    defaults.

    It has the jars that `stores` need. The jars are locked and already on this machine, so nothing is resolved
    at the start. Raises `ConfigProblem` for an option that users cannot set, and `EnvironmentProblem` without a
    suitable Java or a locked jar.
    """
    for problem in find_wrong_options(options):
        raise ConfigProblem(f"spark option {problem.name} {problem.problem}", next_step=f"{problem.next_step.capitalize()}.")
    os.environ["JAVA_HOME"] = str(find_java_for_spark().parent.parent)
    # PySpark reads the executors' Python only from the environment. As in `spark-submit`, the option has precedence.
    if (python := options.get("spark.pyspark.python")) is not None:
        os.environ["PYSPARK_PYTHON"] = str(python)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    user_settings = {name: str(value) for name, value in options.items()}
    local = _is_local(user_settings.get("spark.master", DEFAULTS["spark.master"]))
    settings = {**DEFAULTS, **(LOCAL if local else {}), **user_settings, **FIXED}
    quiet = f"-Dlog4j2.configurationFile=file:{Path(__file__).with_name('log4j2.properties')}"
    settings[JAVA_OPTIONS] = f"{quiet} {TO_STDERR} {settings.get(JAVA_OPTIONS, '')}".strip()
    if local or HERE in settings["spark.master"]:
        os.environ.setdefault("SPARK_LOCAL_IP", HERE)
    jars = ",".join(map(str, fetch_jars("spark", *find_groups(stores))))
    builder = SparkSession.builder.config("spark.jars", jars)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    context = session.sparkContext
    if not _is_local(context.master or "") and not getattr(context, SHIPPED, False):
        # The executors of a cluster get this program's code once per session, but not its dependencies (`msgspec`,
        # `pyarrow`). Every executor fetches it from this folder when it starts.
        folder = Path(tempfile.mkdtemp(prefix="replicator-code-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        context.addPyFile(str(zip_packages(folder / "replicator-code.zip")))
        setattr(context, SHIPPED, True)
    return session


def _is_local(master: str) -> bool:
    return master.startswith("local")


def zip_packages(target: Path) -> Path:
    """The packages `replicator` and `adapters` as one archive that Python can import."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for root in map(Path, import_module(package).__path__):
                for file in sorted(root.rglob("*")):
                    if file.is_file() and "__pycache__" not in file.parts:
                        archive.write(file, str(Path(package) / file.relative_to(root)))
    return target


# Object stores in Spark: Hadoop's file system `s3a`.

SIMPLE = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
TEMPORARY = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
REACHED = "_replicator_reached"
"""Attribute of a Spark context: the access to its buckets. Contains secrets."""


def to_spark_path(uri: str) -> str:
    """Spark's path for delta-rs's `uri`. Spark does not decode escapes in paths."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return uri
    return f"s3a://{unquote(rest)}" if scheme in SCHEMES else unquote(rest)


def configure_store(spark: SparkSession, folder: Folder, storage: StorageSettings | None) -> None:
    """Sets the session's access to the store of `folder`; does nothing for a local folder.

    Raises ConfigProblem when another sink uses the same bucket with other access, because Spark supports one
    per bucket.
    """
    if "://" not in folder.uri:
        return
    bucket, _ = split_url(folder.uri)
    context: Any = spark.sparkContext
    hadoop, settings = context._jsc.hadoopConfiguration(), _store_settings(Storage.from_settings(storage))
    stores: dict[str, dict[str, str]] = context.__dict__.setdefault(REACHED, {})
    if stores.setdefault(bucket, settings) != settings:
        raise ConfigProblem(
            f"two sinks reach the bucket {bucket} in different ways, of which Spark can use one",
            next_step="Write the same `storage` for both, or use two buckets.",
        )
    for name, value in settings.items():
        hadoop.set(f"fs.s3a.bucket.{bucket}.{name}", value)


def _store_settings(storage: Storage) -> dict[str, str]:
    """The options of `s3a` for one bucket. Never log them."""
    keys = storage.config
    options = {
        "access.key": keys.get("aws_access_key_id"),
        "secret.key": keys.get("aws_secret_access_key"),
        "session.token": keys.get("aws_session_token"),
        "endpoint": storage.endpoint,
        "endpoint.region": storage.region,
    }
    settings = {name: value for name, value in options.items() if value is not None}
    if storage.access_key_id is not None:
        settings["aws.credentials.provider"] = SIMPLE if storage.session_token is None else TEMPORARY
    if storage.endpoint is not None:
        settings["path.style.access"] = "true"
        settings["connection.ssl.enabled"] = str(not storage.endpoint.startswith("http://")).lower()
    # The lane retries by itself.
    settings["attempts.maximum"] = settings["retry.limit"] = str(RETRIES)
    settings["connection.establish.timeout"] = str(CONNECT_SECONDS * 1000)
    return settings
