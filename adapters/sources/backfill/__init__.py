"""Backfills: source tables read whole while their changes continue to stream (docs/how-to/backfill-a-table.md).

`PostgresBackfill` and `mariadb.MariaDbBackfill` read a table and write its records into a `journal`. `JournalSource`
delivers these to the lanes. Only the extra `mariadb` installs the driver of `mariadb`: it is not imported here.
"""

from __future__ import annotations

from .journal import JournalSource
from .postgres import PostgresBackfill, PostgresComparison

__all__ = ["JournalSource", "PostgresBackfill", "PostgresComparison"]
