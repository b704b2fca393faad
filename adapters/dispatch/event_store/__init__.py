"""Stores of events that programs emit themselves, by the place that they are kept in."""

from .local import DeltaEventLanes, DeltaEventStore, PostgresEventLanes, PostgresEventStore

__all__ = ["DeltaEventLanes", "DeltaEventStore", "PostgresEventLanes", "PostgresEventStore"]
