"""The event log sink, by its options."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from replicator.domain.errors import ConfigProblem
from replicator.ports.sink import Sink


def event_log_sink(options: Mapping[str, object]) -> Sink[pa.Table]:
    """A Delta table for option `path`, a PostgreSQL table for option `dsn`. ConfigProblem unless exactly one is given."""
    check_location(options)
    # Imported here, so that one kind does not need the driver of the other.
    if "path" in options:
        from ..sinks.delta.event_log import DeltaEventLog  # noqa: PLC0415

        return DeltaEventLog(options)
    from ..sinks.postgres.event_log import PostgresEventLog  # noqa: PLC0415

    return PostgresEventLog(options)


def check_location(options: Mapping[str, object]) -> None:
    """Raise ConfigProblem unless the options contain exactly one of `path` and `dsn`."""
    if ("path" in options) == ("dsn" in options):
        raise ConfigProblem("an event log needs exactly one of `path` and `dsn`", next_step="Name the place it is kept in.")
