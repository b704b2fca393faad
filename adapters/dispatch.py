"""Event logs, and checks of event logs and stores: in a lake for option `path`, in a database for option `dsn`.

Every function imports only what the location needs, so that one kind does not need the driver of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from replicator.ports.runtime import Check
from replicator.ports.sink import Sink

from .postgres import EVENTS_TABLE, LOG_TABLE
from .stores import EventLogSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

# ruff: noqa: PLC0415


def event_log_sink(options: EventLogSettings | Mapping[str, Any]) -> Sink[pa.Table]:
    """A Delta table for option `path`, a PostgreSQL table for option `dsn`. ConfigProblem unless exactly one is given."""
    settings = EventLogSettings.read(options)
    if settings.path is not None:
        from .sinks.delta.event_log import DeltaEventLog

        return DeltaEventLog(settings)
    from .sinks.postgres.event_log import PostgresEventLog

    return PostgresEventLog(settings)


def event_log_spark_sink(options: EventLogSettings | Mapping[str, Any], **more: int) -> Sink[DataFrame]:
    """`event_log_sink` for Spark's frames. `more`: see `sinks.postgres.spark.sink.open_spark_event_log`."""
    from .spark.session import split_options_lazily

    own, _ = split_options_lazily(options)
    if EventLogSettings.read(own).path is not None:
        from .sinks.delta.spark.sink import DeltaSparkEventLog

        return DeltaSparkEventLog(options)
    from .sinks.postgres.spark.sink import open_spark_event_log

    return open_spark_event_log(options, **more)


def event_log_check(name: str, options: Mapping[str, Any]) -> Check:
    """`ports.runtime.Check` of an event log."""
    return _make_check(name, options, LOG_TABLE[0], [options.get("table", LOG_TABLE[1])])


def event_store_check(name: str, options: Mapping[str, Any]) -> Check:
    """`ports.runtime.Check` of the event store as a target. It does not test write access to a database's table."""
    return _make_check(name, options, EVENTS_TABLE[0], [])


def _make_check(name: str, options: Mapping[str, Any], default_schema: str, targets: list[str]) -> Check:
    options = {**options, "lanes": ()}
    if "path" in options:
        from .sinks.delta.check import DeltaCheck

        return DeltaCheck(name, options)
    from .sinks.postgres.check import PostgresCheck

    return PostgresCheck(name, {"schema": default_schema, **options, "targets": targets})
