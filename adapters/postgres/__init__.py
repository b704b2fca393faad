"""PostgreSQL connections, tables, types and names, shared by sources, sinks and projections.

The names here may be left out of a config. Options models import them, so they need no driver.
"""

OWN_SCHEMA = "_replicator"
"""The schema of lane states, tombstones and dead letters."""
DEAD_LETTERS = "dead_letters"
"""The table of dead letters in it."""
LOG_TABLE = ("cdc_raw", "cdc_events")
"""The schema and the table of an event log."""
EVENTS_TABLE = ("events", "events")
"""The schema and the table of the event store."""
