"""Stores of events that Spark writes, and as targets of Spark's frames."""

from __future__ import annotations

from collections.abc import Mapping

from ...delta.event_lanes import DeltaEventLanes
from ...spark.event_store import SparkEventStore
from ...spark.session import split_later
from ...spark.through_driver import ThroughDriver
from ...sql.pg_event_lanes import PostgresEventLanes

__all__ = ["SparkEventStore", "delta_lanes", "postgres_lanes"]


def delta_lanes(options: Mapping[str, object]) -> ThroughDriver:
    """As `DeltaEventLanes`, over Spark's frames: delta-rs commits on the driver."""
    own, session = split_later(options)
    return ThroughDriver(DeltaEventLanes(own), session)


def postgres_lanes(options: Mapping[str, object]) -> ThroughDriver:
    """As `PostgresEventLanes`, over Spark's frames."""
    own, session = split_later(options)
    return ThroughDriver(PostgresEventLanes(own), session)
