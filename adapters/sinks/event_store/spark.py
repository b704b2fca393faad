"""Stores of events that Spark writes."""

from __future__ import annotations

from ...spark.event_store import SparkEventStore

__all__ = ["SparkEventStore"]
