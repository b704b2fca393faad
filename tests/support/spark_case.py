"""One Spark session for all tests of a process, and its frames as tables."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from adapters.engines.spark import SparkEngine
from adapters.sinks.delta.spark.sink import DeltaSparkSink
from adapters.spark.frames import from_arrow, to_arrow
from support.small_spark import SMALL

LONG = bool(os.environ.get("REPLICATOR_LONG"))
INTERPRETED = {
    "spark.sql.adaptive.enabled": "false",
    # Code generation takes most of the time of a plan for few rows. The integration tests run generated code.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Listeners get plans as text.
    "spark.sql.ui.explainMode": "simple",
}
WAREHOUSE = tempfile.mkdtemp(prefix="replicator-warehouse-")
atexit.register(shutil.rmtree, WAREHOUSE, ignore_errors=True)
OPTIONS = {"spark": {**SMALL, **INTERPRETED, "spark.sql.warehouse.dir": WAREHOUSE}, "stores": ["s3"]}


@cache
def get_spark_engine() -> SparkEngine:
    return SparkEngine(OPTIONS)


def list_spark_arguments() -> tuple[str, ...]:
    """Arguments of a command that runs in this process, in the shared session."""
    get_spark_engine()
    return ("--set", "engine=spark", "--set", f"spark={json.dumps(OPTIONS['spark'])}")


class OnSpark:
    """Mixin of contract suites: frames are Spark's. One in two hundred random histories is tried."""

    one_in = 200

    def new_engine(self) -> SparkEngine:
        return get_spark_engine()

    def to_frame(self, frame: pa.Table) -> DataFrame:
        return from_arrow(get_spark_engine().spark, frame)

    def to_arrow(self, frame: DataFrame) -> pa.Table:
        return to_arrow(frame)


@dataclass
class SparkTarget:
    """A lake that Spark writes and reads."""

    folder: Path

    def open(self):
        get_spark_engine()
        return DeltaSparkSink({"path": str(self.folder)})

    def rows(self, lane):
        return self.open().read(lane.into).to_pylist()

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)
