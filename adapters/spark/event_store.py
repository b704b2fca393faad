"""Events that programs emit, written by Spark."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from ..delta.commits import Attempt, LostRace
from ..delta.event_store import DeltaEventStore
from ..delta.event_table import APP, NAME
from ..delta.options import LakeOptions
from .errors import translating
from .frames import from_arrow
from .session import split_later
from .table_writer import SparkTableWriter
from .write import append_stage


class SparkEventStore(DeltaEventStore):
    """As `DeltaEventStore`, with the same table, and commits by Spark; options as there, and `spark`.

    Spark puts an append behind whatever was committed meanwhile. The commit's transaction keeps it from that: of two of one
    number the second is refused or skipped, which is noticed.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        own, self._session = split_later(options)
        said = LakeOptions.checked(own)
        self._session.reaches(said.lake.root, said.storage)
        super().__init__(own, SparkTableWriter(self._session))

    def _write(self, table: DeltaTable, rows: pa.Table, transaction: Transaction) -> None:
        """See `DeltaEventStore`. Also where the snapshot is not the newest any more, by a commit that stored no events."""
        attempt = Attempt(APP, transaction.version, str(uuid4()), self._path)
        with translating(f"writing {NAME}"):
            frame = from_arrow(self._session.spark, rows)
            try:
                append_stage(frame)(table, attempt)
            except LostRace as lost:
                raise CommitFailedError("another writer was first") from lost
