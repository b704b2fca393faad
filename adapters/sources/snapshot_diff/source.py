"""The source of snapshots: takes them into its journal, and reads that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Retryable
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import F, Stop

from ..delta_table.source import LocalTableRows, TableRows
from ..delta_table.version_reader import ApplyBatch
from .file_snapshots import SnapshotFolder
from .journal import SnapshotJournal, restart_step
from .options import SnapshotsOptions
from .query_poll import QuerySnapshotPoller
from .snapshot_provider import SnapshotPoller
from .text_formats import find_format


class SnapshotJournalRows(TableRows[F]):
    """A `Source` over snapshots of a table (see the package), but for how the rows of its journal become a frame.

    Its one topic is called as the table. Lanes without a position begin with the first snapshot that was taken in.
    """

    _intake: SnapshotPoller

    def before_refresh(self) -> None:
        """Take the next snapshot in, if there is one."""
        self._intake.poll()

    def run(self, start: Position, apply_batch: ApplyBatch[F], stop: Stop, *, once: bool) -> None:
        """As the port says; with `once` up to the newest snapshot that there is now: of a database, up to one new one."""
        self._intake.begin()
        if once:
            self._intake.catch_up(stop)
        try:
            super().run(start, apply_batch, stop, once=once)
        finally:
            if stop.is_set():
                self.close()

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        """As the port says."""
        self._intake.begin()
        return super().losses(position, identity)

    def start(self) -> Position:
        """As the port says: the first snapshot."""
        return self.beginning()

    def beginning(self) -> Position:
        """As the port says."""
        self._intake.begin()
        return super().beginning()

    def end(self) -> Position:
        """As the port says: of the snapshots that were taken in."""
        self._intake.begin()
        return super().end()

    def waited_for(self) -> tuple[str, float] | None:
        return self._intake.waited_for()

    def close(self) -> None:
        """As the port says."""
        self._intake.close()


class SnapshotsSource(SnapshotJournalRows[pa.Table], LocalTableRows):
    """`SnapshotJournalRows` whose frames are `pyarrow.Table`."""

    def __init__(self, options: Mapping[str, object]) -> None:
        read = SnapshotsOptions.read(options)
        self._intake = make_poller(read)
        super().__init__(read.rows_options(), str(read.journal))


def make_poller(options: SnapshotsOptions) -> SnapshotPoller:
    """What takes snapshots in. ConfigProblem where nothing says by which key they are compared."""
    if not options.keys:
        raise ConfigProblem(
            f"Nothing says what the key of {options.name} is, by which its snapshots are compared.",
            next_step=f"Write a table with `match: {options.name}` and `keys`.",
        )
    return FolderPoller(options) if options.dsn is None else QuerySnapshotPoller(options)


class FolderPoller:
    """`SnapshotPoller` of the files in a folder."""

    def __init__(self, options: SnapshotsOptions) -> None:
        self._path = options.path or ""
        self._folder = SnapshotFolder(self._path, restart_step(Path(options.state)), find_format(options))
        self._journal = SnapshotJournal(options, self._folder)

    def begin(self) -> None:
        """Retryable while the first may still be written to, EnvironmentProblem when there is none."""
        if not self._journal.has_snapshots and not self._journal.take_next() and not self._journal.has_snapshots:
            if self._folder.seconds_until_stable({}) > 0:
                raise Retryable(f"The snapshot in {self._path} was written to a moment ago.")
            raise EnvironmentProblem(
                f"There is no whole snapshot in {self._path} yet.",
                next_step="Start again when there is one: a file, or a folder of them with _SUCCESS in it.",
            )
        self._journal.check_rules()

    def poll(self) -> None:
        self._journal.take_next()

    def catch_up(self, stop: Stop) -> None:
        """See `SnapshotPoller`: those too that were written a moment ago, once nobody writes to them."""
        while (left := self._folder.seconds_until_stable(self._journal.known_versions())) > 0:
            if stop.wait(min(left, 1.0)):
                return
        while not stop.is_set() and self._journal.take_next():
            pass

    def waited_for(self) -> None:
        """See `SnapshotPoller`: a file is waited for in the stream."""

    def close(self) -> None:
        """See `SnapshotPoller`."""
