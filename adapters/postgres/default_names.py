"""Names of schemas and tables that a config may leave out. Options models import this module, so it needs no driver."""

from __future__ import annotations

OWN_SCHEMA = "_replicator"
"""The schema of lane states, tombstones and dead letters."""
DEAD_LETTERS = "dead_letters"
"""The table of dead letters in it."""
LOG_TABLE = ("cdc_raw", "cdc_events")
"""The schema and the table of an event log."""
EVENTS_TABLE = ("events", "events")
"""The schema and the table of the event store."""
