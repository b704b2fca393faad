"""Stores of events that are written by this process, for programs that emit events and as targets of an outbox's."""

from __future__ import annotations

from ...delta.event_lanes import DeltaEventLanes
from ...delta.event_store import DeltaEventStore
from ...sql.pg_event_lanes import PostgresEventLanes
from ...sql.pg_event_store import PostgresEventStore

__all__ = ["DeltaEventLanes", "DeltaEventStore", "PostgresEventLanes", "PostgresEventStore"]
