"""The snapshots source: writes changes to its journal, and reads that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Retryable
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Stop

from ..delta_table.source import ApplyBatch, TableRows
from ..scan import open_scan
from .file_formats import find_snapshot_format
from .file_snapshots import SnapshotFolder
from .journal import SnapshotJournal, restart_step
from .options import SnapshotsOptions
from .query_poll import QuerySnapshotPoller
from .snapshots import SnapshotPoller


class SnapshotJournalRows(TableRows):
    """A `Source` over snapshots of a table (see the package). Subclasses define the poller.

    Its one topic has the name of the table. Lanes without a position begin with the first processed snapshot. This process
    polls and writes the journal. The engine reads it, so Spark's executors need access to the state folder.
    """

    _intake: SnapshotPoller

    def before_refresh(self) -> None:
        """Process the next snapshot, if there is one."""
        self._intake.poll()

    def run(self, start: Position, apply_batch: ApplyBatch, stop: Stop, *, once: bool) -> None:
        """See the port. With `once`, up to the newest snapshot at the start; for a database, up to one new snapshot."""
        self._intake.begin()
        if once:
            self._intake.catch_up(stop)
        try:
            super().run(start, apply_batch, stop, once=once)
        finally:
            if stop.is_set():
                self.close()

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        self._intake.begin()
        return super().losses(position, identity)

    def start(self) -> Position:
        """See the port: the first snapshot."""
        return self.beginning()

    def beginning(self) -> Position:
        self._intake.begin()
        return super().beginning()

    def end(self) -> Position:
        """See the port: the end of the processed snapshots."""
        self._intake.begin()
        return super().end()

    def waited_for(self) -> tuple[str, float] | None:
        return self._intake.waited_for()

    def close(self) -> None:
        self._intake.close()


class SnapshotsSource(SnapshotJournalRows):
    """Snapshots in a folder, or of a query. Options of `SnapshotsOptions`, and those of the engine. Raises ConfigProblem if
    no key is configured."""

    def __init__(self, options: Mapping[str, object]) -> None:
        own, scan = open_scan(options)
        read = SnapshotsOptions.read(own)
        if not read.keys:
            raise ConfigProblem(
                f"The key of {read.name} is unknown. It is needed to compare its snapshots.",
                next_step=f"Write a table with `match: {read.name}` and `keys`.",
            )
        self._intake = FolderPoller(read) if read.dsn is None else QuerySnapshotPoller(read)
        super().__init__(read.rows_options(), str(read.journal), scan)


class FolderPoller:
    """`SnapshotPoller` of files in a folder."""

    def __init__(self, options: SnapshotsOptions) -> None:
        self._path = options.path or ""
        self._folder = SnapshotFolder(self._path, restart_step(Path(options.state)), find_snapshot_format(options))
        self._journal = SnapshotJournal(options, self._folder)

    def begin(self) -> None:
        """Raises Retryable while the first snapshot may still be written, EnvironmentProblem if there is none."""
        if not self._journal.has_snapshots and not self._journal.take_next() and not self._journal.has_snapshots:
            if self._folder.seconds_until_stable({}) > 0:
                raise Retryable(f"The snapshot in {self._path} is still being written.")
            raise EnvironmentProblem(
                f"There is no whole snapshot in {self._path} yet.",
                next_step="Start again when there is one: a file, or a folder of them with _SUCCESS in it.",
            )
        self._journal.check_rules()

    def poll(self) -> None:
        self._journal.take_next()

    def catch_up(self, stop: Stop) -> None:
        """See `SnapshotPoller.catch_up`: includes recently written snapshots, when they are complete."""
        while (left := self._folder.seconds_until_stable(self._journal.known_versions())) > 0:
            if stop.wait(min(left, 1.0)):
                return
        while not stop.is_set() and self._journal.take_next():
            pass

    def waited_for(self) -> None:
        """See `SnapshotPoller`: waiting for files happens in the stream."""

    def close(self) -> None:
        """See `SnapshotPoller`."""
