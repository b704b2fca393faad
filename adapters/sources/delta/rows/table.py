"""A Delta table as a list of data files per version."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from deltalake.exceptions import DeltaError

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Fatal

from ....delta.folders import Located
from ....delta.followed import entry
from ....delta.reading import table_name
from ..files import Rewritten, parquet
from ..opened import OpenedTable
from .commits import FEED_IS_ON, Commit, State, Stored, present
from .losses import cleaned, rewritten, vacuumed, without_feed
from .options import RowsOptions
from .pieces import FEED, Content, DataFile
from .places import MOST_ROWS

MISSING = "Start the pipeline that writes the table first, or correct 'path' of the source."


class Stats(msgspec.Struct):
    """What a commit says of a file."""

    records: int | None = msgspec.field(default=None, name="numRecords")


_stats = msgspec.json.Decoder(Stats).decode


def _records_said(stats: str | None) -> int | None:
    """How many rows a file has, where its statistics are readable and say so."""
    try:
        return _stats(stats).records if stats else None
    except (msgspec.DecodeError, UnicodeError):
        return None


@dataclass(frozen=True)
class Version:
    """The rows that a version changed, or that the table has in it: its files in the order in which rows are numbered."""

    content: Content
    files: tuple[DataFile, ...]


class RowsTable:
    """The table that options name in the folder or at the URL `path`. Files, and rows in them, never change once they are
    there: so every reader numbers the rows of a version alike, by the paths of its files. Not safe for use from several
    threads."""

    def __init__(self, options: RowsOptions, path: str) -> None:
        self._opened = OpenedTable(path, MISSING, options.storage)
        self._options = options
        self._name = options.table or ""
        self._id: tuple[object, str] = (None, "")

    @property
    def root(self) -> str:
        """Its folder."""
        return str(self._opened.root)

    @property
    def name(self) -> str:
        """What the stream is called: the table's own name."""
        if not self._name:
            with self._opened.reading():
                self._opened.newest()
                self._name = table_name(self._opened.root)
        return self._name

    def newest(self) -> int:
        """The newest version. Raises EnvironmentProblem when there is no table, ConfigProblem when it cannot be read."""
        with self._opened.reading():
            table = self._opened.newest()
            if self._id[0] is not table:
                state = State.of(table)
                self._refuse_without_feed(state)
                self._id = (table, state.table)
            return int(table.version())

    def identity(self) -> str:
        """The id of the table that is there now."""
        self.newest()
        return self._id[1]

    def oldest(self) -> int:
        """The first version from which on every commit is there."""
        version, there = self.newest(), {*self._opened.log.files()}
        while version > 0 and entry(version - 1) in there:
            version -= 1
        return version

    def state(self, version: int) -> State:
        """What held of the table in `version`. DataLoss when that is no longer known."""
        try:
            with self._opened.reading():
                return State.of(self._opened.at(version))
        except (DeltaError, Fatal) as error:
            if isinstance(error, ConfigProblem | EnvironmentProblem):
                raise
            raise cleaned(self.name, version) from error

    def commit(self, version: int) -> Commit:
        """What a version did. DataLoss when it is no longer known."""
        try:
            return Commit.read(version, self._opened.log)
        except FileNotFoundError as gone:
            raise cleaned(self.name, version) from gone

    def has(self, version: int) -> bool:
        """Whether it is known what a version did."""
        return self._opened.log.holds(entry(version))

    def state_after(self, state: State, commit: Commit) -> State:
        """What holds of the table from `commit` on, where `state` held before."""
        return state.after(commit, self.root)

    def changed(self, commit: Commit, state: State) -> Version:
        """The rows that a commit changed. DataLoss when these are others than the source reads."""
        if self._options.changes == "appended":
            if commit.removes:
                raise rewritten(self.name, commit.version, commit.operation)
            files = [("insert", file) for file in commit.adds]
        else:
            if commit.removes and not commit.feed and not state.has_feed:
                raise without_feed(self.name, commit.version)
            both = [("delete", file) for file in commit.removes] + [("insert", file) for file in commit.adds]
            files = [(FEED, file) for file in commit.feed] or both
        return self._version(commit.version, commit.at, state, [(OPS[kind], file) for kind, file in files])

    def whole(self, version: int) -> Version:
        """The rows of the table as it is in `version`, older files first. DataLoss when that is no longer known."""
        state = self.state(version)
        with self._opened.reading():
            files = present(self._opened.at(version))
        at = self.commit(version).at if self.has(version) else None
        found = self._numbered(version, at, state, [(self._place(version, file), "r", file) for file in files])
        return Version(Content(**{**vars(found.content), "whole": True}), found.files)

    def _version(self, version: int, at: int | None, state: State, files: Iterable[tuple[str, Stored]]) -> Version:
        """Deletes before the rest, so that in the stream too a row goes before another of its key comes."""
        named = [(self._place(version, file), op, file) for op, file in files]
        return self._numbered(version, at, state, sorted(named, key=lambda one: (one[1] != "d", str(one[0]))))

    def _place(self, version: int, file: Stored) -> Located:
        """Where it is. A commit need not say how large a file is that it removes."""
        try:
            return self._opened.root.located(file.path, file.size)
        except FileNotFoundError as gone:
            raise vacuumed(self.name, version, file.path) from gone

    def _numbered(self, version: int, at: int | None, state: State, files: Iterable[tuple[Located, str, Stored]]) -> Version:
        """Rows count up through the files, each with its path and operation."""
        found, first = [], 0
        for path, op, file in files:
            rows = self._rows(version, path, file)
            partition = state.partition(self._partition(version, file, state))
            found.append(DataFile(path, op, rows, partition, first))
            first += rows
        if first > MOST_ROWS:
            raise Fatal(
                f"Version {version} of the table {self.name} has {first} rows, of which only {MOST_ROWS} can be numbered."
            )
        left_out = state.left_out(self._options.columns)
        return Version(Content(self.name, version, False, at, state.schema, left_out, self._options.masked), tuple(found))

    def _rows(self, version: int, path: Located, file: Stored) -> int:
        said = _records_said(file.stats)
        if said is not None:
            return said
        try:
            with parquet(path) as reader:
                return int(reader.metadata.num_rows)
        except Rewritten as gone:
            raise vacuumed(self.name, version, str(gone.path)) from gone

    def _partition(self, version: int, file: Stored, state: State) -> dict[str, str | None]:
        if file.partitionValues is None and state.partition_by:
            raise Fatal(
                f"Version {version} of the table {self.name} does not say of which partition the rows are that it removes.",
                next_step="Load the table as it is now with `replicator lanes resync LANE`.",
            )
        return file.partitionValues or {}

    def _refuse_without_feed(self, state: State) -> None:
        if self._options.changes == "feed" and not state.has_feed:
            raise ConfigProblem(
                f"The table in {self.root} has no change data feed.",
                next_step=f"ALTER TABLE ... SET TBLPROPERTIES ({FEED_IS_ON} = true); a target of ours gets it with "
                "`change_data_feed: true`. Or write `changes: appended`.",
            )


OPS = {"insert": "c", "delete": "d", FEED: FEED}
