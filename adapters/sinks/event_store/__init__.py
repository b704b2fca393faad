"""Stores of events that programs emit themselves, by the place that they are kept in."""

from .local import DeltaEventStore, PostgresEventStore

__all__ = ["DeltaEventStore", "PostgresEventStore"]
