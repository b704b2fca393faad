"""Stores of events that are written by this process, for programs that emit events and as targets of an outbox's."""

from __future__ import annotations

from ...sinks.delta.event_lanes import DeltaEventLanes
from ...sinks.delta.event_store import DeltaEventStore
from ...sinks.postgres.event_lanes import PostgresEventLanes
from ...sinks.postgres.event_store import PostgresEventStore

__all__ = ["DeltaEventLanes", "DeltaEventStore", "PostgresEventLanes", "PostgresEventStore"]
