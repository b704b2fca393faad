"""The event log sink, by its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from replicator.ports.sink import Sink

from ..event_log.options import EventLogSettings


def event_log_sink(options: EventLogSettings | Mapping[str, Any]) -> Sink[pa.Table]:
    """A Delta table for option `path`, a PostgreSQL table for option `dsn`. ConfigProblem unless exactly one is given."""
    found = EventLogSettings.read(options)
    # Imported here, so that one kind does not need the driver of the other.
    if found.path is not None:
        from ..sinks.delta.event_log import DeltaEventLog  # noqa: PLC0415

        return DeltaEventLog(found)
    from ..sinks.postgres.event_log import PostgresEventLog  # noqa: PLC0415

    return PostgresEventLog(found)
