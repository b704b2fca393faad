"""Delta tables as sources: an event log as the topics that it recorded, or (`format: rows`) the rows of any table."""

from __future__ import annotations

from collections.abc import Mapping

from ..delta_table.source import RowsSource
from ..event_log.delta.source import DeltaSource

__all__ = ["ROWS", "DeltaSource", "RowsSource", "delta_source"]

ROWS = "rows"
"""The format that reads the rows of the table itself."""


def delta_source(options: Mapping[str, object]) -> DeltaSource | RowsSource:
    """The source for the configured `format`."""
    return RowsSource(options) if options.get("format") == ROWS else DeltaSource(options)
