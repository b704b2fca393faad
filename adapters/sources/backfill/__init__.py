"""Tables that are read whole, beside the stream of their changes (docs/backfill.md).

`PostgresBackfill` and `MariaDbBackfill` read a table and write records of it into a `journal`; `JournalSource` gives them to
the lanes.
"""

from __future__ import annotations

from .mariadb import MariaDbBackfill
from .postgres import PostgresBackfill
from .source import JournalSource

__all__ = ["JournalSource", "MariaDbBackfill", "PostgresBackfill"]
