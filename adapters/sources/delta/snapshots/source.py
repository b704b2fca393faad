"""The source of snapshots: takes them into its journal, and reads that."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Stop

from ..rows.following import ApplyBatch
from ..rows.source import RowsInProcess
from .journal import Journal
from .options import SnapshotsOptions


class SnapshotsSource(RowsInProcess):
    """A `Source` over snapshots of a table (see the package); frames are `pyarrow.Table`.

    Its one topic is called as the folder. Lanes without a position begin with the first snapshot that was taken in.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        self._asked = SnapshotsOptions.read(options)
        if not self._asked.keys:
            raise ConfigProblem(
                f"Nothing says what the key of {self._asked.table} is, by which its snapshots are compared.",
                next_step=f"Write a table with `match: {self._asked.table}` and `keys`.",
            )
        self._journal = Journal(self._asked)
        super().__init__(self._asked.rows(), str(self._asked.journal))

    def look(self) -> None:
        """Take the next snapshot in, if there is one."""
        self._journal.take()

    def run(self, start: Position, apply_batch: ApplyBatch[pa.Table], stop: Stop, *, once: bool) -> None:
        """As the port says; with `once` up to the newest snapshot that there is now."""
        self._begin()
        while once and not stop.is_set() and self._journal.take():
            pass
        super().run(start, apply_batch, stop, once=once)

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        """As the port says."""
        self._begin()
        return super().losses(position, identity)

    def start(self) -> Position:
        """As the port says: the first snapshot."""
        return self.beginning()

    def beginning(self) -> Position:
        """As the port says."""
        self._begin()
        return super().beginning()

    def end(self) -> Position:
        """As the port says: of the snapshots that were taken in."""
        self._begin()
        return super().end()

    def _begin(self) -> None:
        """Take the first snapshot in. EnvironmentProblem when there is none."""
        if not self._journal.is_there and not self._journal.take() and not self._journal.is_there:
            raise EnvironmentProblem(
                f"There is no whole snapshot in {self._asked.path} yet.",
                next_step="Start again when there is one: a Parquet file, or a folder of them with _SUCCESS in it.",
            )
