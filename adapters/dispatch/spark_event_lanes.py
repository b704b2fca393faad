"""Event stores as targets of Spark's frames."""

from __future__ import annotations

from collections.abc import Mapping

from ..sinks.delta.event_lanes import DeltaEventLanes
from ..sinks.postgres.event_lanes import PostgresEventLanes
from ..spark.driver_sink import DriverSink
from ..spark.session import split_options_lazily


def delta_lanes(options: Mapping[str, object]) -> DriverSink:
    """`DeltaEventLanes` for Spark's frames. delta-rs commits on the driver."""
    own, session = split_options_lazily(options)
    return DriverSink(DeltaEventLanes(own), session)


def postgres_lanes(options: Mapping[str, object]) -> DriverSink:
    """`PostgresEventLanes` for Spark's frames."""
    own, session = split_options_lazily(options)
    return DriverSink(PostgresEventLanes(own), session)
