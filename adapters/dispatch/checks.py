"""An event log, and the store of events, wherever they are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replicator.ports.diagnosis import Check

from ..sinks.delta.check import DeltaCheck
from ..sinks.postgres.check import PostgresCheck

SCHEMA = "cdc_raw"
TABLE = "cdc_events"
EVENTS = "events"
"""The schema of a store of events. Its table need not be one that may be changed."""


def event_log_check(name: str, options: Mapping[str, Any]) -> Check:
    """`ports.diagnosis.Check` of option `path` or option `dsn`."""
    options = {**options, "lanes": ()}
    if "path" in options:
        return DeltaCheck(name, options)
    return PostgresCheck(name, {"schema": SCHEMA, **options, "targets": [options.get("table", TABLE)]})


def event_store_check(name: str, options: Mapping[str, Any]) -> Check:
    """`ports.diagnosis.Check` of the store of events as a target; option `path` or option `dsn`."""
    options = {**options, "lanes": ()}
    if "path" in options:
        return DeltaCheck(name, options)
    return PostgresCheck(name, {"schema": EVENTS, **options, "targets": []})
