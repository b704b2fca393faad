"""Delta tables as sources: an event log as the topics that it recorded, or (`format: rows`) the rows of any table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replicator.ports.adapter_options import ROWS

from ..delta_options import DeltaSourceSettings
from ..delta_table.source import RowsSource
from ..event_log.delta.source import DeltaSource


def delta_source(options: DeltaSourceSettings | Mapping[str, Any]) -> DeltaSource | RowsSource:
    """The source for the configured `format`."""
    found = DeltaSourceSettings.read(options)
    return RowsSource(found) if found.format == ROWS else DeltaSource(found)
