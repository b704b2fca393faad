"""The PostgreSQL sink for Spark frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ....spark.session import split_options_lazily
from ....sql.dialect import SPARK
from ..options import PostgresSettings
from ..sink import PostgresSink
from .lanes import THROUGH_DRIVER, SparkPostgresLanes


class PostgresSparkSink(SparkPostgresLanes):
    """`PostgresSink` over `pyspark.sql.DataFrame`; its options, and `spark`.

    Tables and positions are the same, so a lane can change between the two sinks.
    """

    def __init__(self, options: PostgresSettings | Mapping[str, Any], through_driver: int = THROUGH_DRIVER) -> None:
        own, session = split_options_lazily(options)
        self._sink = PostgresSink(own)
        features = replace(self._sink.features, explain=partial(self._sink.explain, fold=SPARK))
        super().__init__(self._sink.lanes, features, session, through_driver)

    def close(self) -> None:
        self._sink.close()
