"""Stores of events that are written by this process."""

from __future__ import annotations

from ...delta.event_store import DeltaEventStore
from ...sql.pg_event_store import PostgresEventStore

__all__ = ["DeltaEventStore", "PostgresEventStore"]
