"""The PostgreSQL sink for Spark frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.ports.checkpoints import StoredLane
from replicator.ports.frames import Lane
from replicator.ports.sink import CutoverDecision, LaneArtifact

from ....spark.session import split_options_lazily
from ....sql.dialect import SPARK
from ..sink import PostgresSink
from .lanes import THROUGH_DRIVER, SparkPostgresLanes


class PostgresSparkSink(SparkPostgresLanes):
    """`PostgresSink` over `pyspark.sql.DataFrame`; its options, and `spark`.

    Tables and positions are the same, so a lane can change between the two sinks.
    """

    def __init__(self, options: Mapping[str, object], through_driver: int = THROUGH_DRIVER) -> None:
        own, session = split_options_lazily(options)
        self._postgres = PostgresSink(own)
        super().__init__(self._postgres.lanes, self._postgres.capabilities, session, through_driver)

    def list_artifacts(self, lane: Lane) -> Sequence[LaneArtifact]:
        return self._postgres.list_artifacts(lane)

    def drop(self, lane: Lane) -> None:
        self._postgres.drop(lane)

    def refuse_second_writer(self, lane: Lane) -> None:
        self._postgres.refuse_second_writer(lane)

    def swap(self, lane: Lane, rebuilt: Lane, judge: CutoverDecision) -> LaneState:
        return self._postgres.swap(lane, rebuilt, judge)

    def restore_state(self, lane: Lane, plan: ApplyPlan, stored: StoredLane) -> None:
        self._postgres.restore_state(lane, plan, stored)

    def explain(self, lane: Lane, plan: ApplyPlan) -> Mapping[str, str]:
        return self._postgres.explain(lane, plan, SPARK)
