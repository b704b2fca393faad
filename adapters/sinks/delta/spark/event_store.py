"""The event store, written by Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from ....delta.commits import Attempt, LostRace
from ....delta.options import LakeOptions
from ....spark.errors import translate_errors
from ....spark.frames import from_arrow
from ....spark.merge import append_stage
from ....spark.session import split_options_lazily
from ....spark.sink_over_frames import SinkOverFrames
from ....spark.table_writer import SparkTableWriter
from ....stores import EventStoreSettings
from ..event_lanes import DeltaEventLanes
from ..event_store import APP, NAME, DeltaEventStore


class SparkEventStore(DeltaEventStore):
    """`DeltaEventStore` with commits by Spark; its options, and `spark`.

    Spark appends after commits that happened meanwhile. The commit's transaction prevents this: of two commits
    with the same number, the second is refused or skipped, and this is detected.
    """

    def __init__(self, options: EventStoreSettings | Mapping[str, Any]) -> None:
        own, self._session = split_options_lazily(options)
        settings = EventStoreSettings.read(own)
        said = LakeOptions.from_settings(settings)
        self._session.add_store(said.lake.root, said.storage)
        super().__init__(settings, SparkTableWriter(self._session))

    def _write(self, table: DeltaTable, rows: pa.Table, transaction: Transaction) -> None:
        """Also succeeds when the snapshot is not the newest one, if the newer commits stored no events."""
        attempt = Attempt(APP, transaction.version, str(uuid4()), self._path)
        with translate_errors(f"writing {NAME}"):
            frame = from_arrow(self._session.spark, rows)
            try:
                append_stage(frame)(table, attempt)
            except LostRace as lost:
                raise CommitFailedError("another writer was first") from lost


def open_spark_event_lanes(options: EventStoreSettings | Mapping[str, Any]) -> SinkOverFrames:
    """`DeltaEventLanes` for Spark's frames. delta-rs commits on the driver."""
    own, session = split_options_lazily(options)
    return SinkOverFrames(DeltaEventLanes(own), session)
