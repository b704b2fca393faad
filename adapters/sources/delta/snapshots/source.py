"""The source of snapshots: takes them into its journal, and reads that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Retryable
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import F, Stop

from ..rows.following import ApplyBatch
from ..rows.source import RowsInProcess, RowsOfTable
from .asking import AskedIntake
from .found import Folder
from .journal import Journal, begin_anew
from .options import SnapshotsOptions
from .supply import Intake
from .texts import form_of


class OfSnapshots(RowsOfTable[F]):
    """A `Source` over snapshots of a table (see the package), but for how the rows of its journal become a frame.

    Its one topic is called as the table. Lanes without a position begin with the first snapshot that was taken in.
    """

    _intake: Intake

    def look(self) -> None:
        """Take the next snapshot in, if there is one."""
        self._intake.look()

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
        """See `ports.source.WaitsBeside`."""
        return self._intake.waited_for()

    def close(self) -> None:
        """As the port says."""
        self._intake.close()


class SnapshotsSource(OfSnapshots[pa.Table], RowsInProcess):
    """`OfSnapshots` whose frames are `pyarrow.Table`."""

    def __init__(self, options: Mapping[str, object]) -> None:
        read = SnapshotsOptions.read(options)
        self._intake = intake_of(read)
        super().__init__(read.rows(), str(read.journal))


def intake_of(options: SnapshotsOptions) -> Intake:
    """What takes snapshots in. ConfigProblem where nothing says by which key they are compared."""
    if not options.keys:
        raise ConfigProblem(
            f"Nothing says what the key of {options.name} is, by which its snapshots are compared.",
            next_step=f"Write a table with `match: {options.name}` and `keys`.",
        )
    return FolderIntake(options) if options.dsn is None else AskedIntake(options)


class FolderIntake:
    """`Intake` of the files in a folder."""

    def __init__(self, options: SnapshotsOptions) -> None:
        self._path = options.path or ""
        self._folder = Folder(self._path, begin_anew(Path(options.state)), form_of(options))
        self._journal = Journal(options, self._folder)

    def begin(self) -> None:
        """See `Intake`. Retryable while the first may still be written to, EnvironmentProblem when there is none."""
        if not self._journal.is_there and not self._journal.take() and not self._journal.is_there:
            if self._folder.settles_in({}) > 0:
                raise Retryable(f"The snapshot in {self._path} was written to a moment ago.")
            raise EnvironmentProblem(
                f"There is no whole snapshot in {self._path} yet.",
                next_step="Start again when there is one: a file, or a folder of them with _SUCCESS in it.",
            )
        self._journal.hold()

    def look(self) -> None:
        """See `Intake`."""
        self._journal.take()

    def catch_up(self, stop: Stop) -> None:
        """See `Intake`: those too that were written a moment ago, once nobody writes to them."""
        while (left := self._folder.settles_in(self._journal.known())) > 0:
            if stop.wait(min(left, 1.0)):
                return
        while not stop.is_set() and self._journal.take():
            pass

    def waited_for(self) -> None:
        """See `Intake`: a file is waited for in the stream."""

    def close(self) -> None:
        """See `Intake`."""
