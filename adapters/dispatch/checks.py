"""Checks of an event log and of the event store, in a lake or in a database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replicator.ports.runtime import Check

from ..sinks.delta.check import DeltaCheck
from ..sinks.postgres.check import PostgresCheck

SCHEMA = "cdc_raw"
TABLE = "cdc_events"
EVENTS = "events"
"""The default schema of an event store. The check does not test write access to its table."""


def event_log_check(name: str, options: Mapping[str, Any]) -> Check:
    """`ports.runtime.Check` of an event log; option `path` or option `dsn`."""
    options = {**options, "lanes": ()}
    if "path" in options:
        return DeltaCheck(name, options)
    return PostgresCheck(name, {"schema": SCHEMA, **options, "targets": [options.get("table", TABLE)]})


def event_store_check(name: str, options: Mapping[str, Any]) -> Check:
    """`ports.runtime.Check` of the event store as a target; option `path` or option `dsn`."""
    options = {**options, "lanes": ()}
    if "path" in options:
        return DeltaCheck(name, options)
    return PostgresCheck(name, {"schema": EVENTS, **options, "targets": []})
