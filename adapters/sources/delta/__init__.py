"""Delta tables as streams: an event log as the topics that it recorded, and (`format: rows`) the rows of any table."""

from __future__ import annotations

from collections.abc import Mapping

from ..delta_table import RowsSource
from ..event_log.delta.source import DeltaSource

__all__ = ["ROWS", "DeltaSource", "RowsSource", "delta_source"]

ROWS = "rows"
"""The format with which the rows of the table itself are read."""


def delta_source(options: Mapping[str, object]) -> DeltaSource | RowsSource:
    """The source that reads the table in the way that `format` asks for."""
    return RowsSource(options) if options.get("format") == ROWS else DeltaSource(options)
