"""An event log, wherever it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replicator.ports.diagnosis import Check

from .delta import DeltaCheck
from .postgres import PostgresCheck

SCHEMA = "cdc_raw"
TABLE = "cdc_events"


def event_log_check(name: str, options: Mapping[str, Any]) -> Check:
    """`ports.diagnosis.Check` of option `path` or option `dsn`."""
    if "path" in options:
        return DeltaCheck(name, options)
    return PostgresCheck(name, {"schema": SCHEMA, **options, "targets": [options.get("table", TABLE)]})
