"""Backfills: source tables read whole while their changes continue to stream (docs/backfill.md).

`PostgresBackfill` and `MariaDbBackfill` read a table and write its records into a `journal`. `JournalSource` delivers
these to the lanes.
"""

from __future__ import annotations

from .mariadb import MariaDbBackfill
from .postgres import PostgresBackfill
from .source import JournalSource

__all__ = ["JournalSource", "MariaDbBackfill", "PostgresBackfill"]
