"""Tables in a schema of a PostgreSQL database, from Spark's frames."""

from __future__ import annotations

from collections.abc import Mapping

from replicator.domain.plan import ApplyPlan
from replicator.ports.frames import Lane

from ...spark.collected import Collected
from ...spark.session import split
from .local import PostgresSink


class PostgresSparkSink(Collected):
    """`PostgresSink` over `pyspark.sql.DataFrame`; its options, and `spark`."""

    def __init__(self, options: Mapping[str, object]) -> None:
        own, spark = split(options)
        self._postgres = PostgresSink(own)
        super().__init__(self._postgres, spark)

    def explain(self, lane: Lane, plan: ApplyPlan) -> Mapping[str, str]:
        """See `ports.sink.Explains`."""
        return self._postgres.explain(lane, plan)
