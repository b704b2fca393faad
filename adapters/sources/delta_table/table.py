"""A Delta table as a list of data files per version."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from deltalake.exceptions import DeltaError

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Fatal

from ...delta.folders import FileLocation
from ...delta.latest_version import commit_file_name
from ...delta.table_reader import table_name
from ..delta_reader.data_files import FileRewritten, open_parquet
from ..delta_reader.open_table import SourceDeltaTable
from .commits import FEED_IS_ON, Commit, CommitFile, TableState, list_files
from .data_loss_check import cleaned_error, missing_feed_error, rewritten_error, vacuumed_error
from .offsets import MOST_ROWS
from .options import RowsOptions
from .splits import FEED, Content, TableFile

MISSING = "Start the pipeline that writes the table first, or correct 'path' of the source."


class FileStatistics(msgspec.Struct):
    """The statistics of a file in a commit."""

    records: int | None = msgspec.field(default=None, name="numRecords")


_stats = msgspec.json.Decoder(FileStatistics).decode


def _read_row_count(stats: str | None) -> int | None:
    """The number of rows, if the statistics are readable and contain it."""
    try:
        return _stats(stats).records if stats else None
    except (msgspec.DecodeError, UnicodeError):
        return None


@dataclass(frozen=True)
class RowVersion:
    """The rows that a version changed, or all its rows: the files in the order in which rows are numbered."""

    content: Content
    files: tuple[TableFile, ...]


class RowsTable:
    """The table in the folder or at the URL `path`. Files and their rows never change after they were written. So all
    readers number the rows of a version in the same way, by the paths of its files. Not safe for use from several
    threads."""

    def __init__(self, options: RowsOptions, path: str) -> None:
        self._opened = SourceDeltaTable(path, MISSING, options.storage)
        self._options = options
        self._name = options.table or ""
        self._id: tuple[object, str] = (None, "")

    @property
    def root(self) -> str:
        """The folder of the table."""
        return str(self._opened.root)

    @property
    def name(self) -> str:
        """The name of the stream: the table's own name."""
        if not self._name:
            with self._opened.translate_errors():
                self._opened.newest()
                self._name = table_name(self._opened.root)
        return self._name

    def find_newest(self) -> int:
        """The newest version. Raises EnvironmentProblem if there is no table, ConfigProblem if it is unsupported."""
        with self._opened.translate_errors():
            table = self._opened.newest()
            if self._id[0] is not table:
                state = TableState.from_table(table)
                self._refuse_without_feed(state)
                self._id = (table, state.table)
            return int(table.version())

    def read_identity(self) -> str:
        """The id of the current table."""
        self.find_newest()
        return self._id[1]

    def find_oldest(self) -> int:
        """The first version after which no commit is missing."""
        version, there = self.find_newest(), {*self._opened.log.files()}
        while version > 0 and commit_file_name(version - 1) in there:
            version -= 1
        return version

    def read_state(self, version: int) -> TableState:
        """The state of the table in `version`. Raises DataLoss if it is no longer available."""
        try:
            with self._opened.translate_errors():
                return TableState.from_table(self._opened.open_version(version))
        except (DeltaError, Fatal) as error:
            if isinstance(error, ConfigProblem | EnvironmentProblem):
                raise
            raise cleaned_error(self.name, version) from error

    def read_commit(self, version: int) -> Commit:
        """The commit of a version. Raises DataLoss if it is no longer available."""
        try:
            return Commit.read(version, self._opened.log)
        except FileNotFoundError as gone:
            raise cleaned_error(self.name, version) from gone

    def has_version(self, version: int) -> bool:
        """True if the commit of the version is available."""
        return self._opened.log.has_file(commit_file_name(version))

    def state_after(self, state: TableState, commit: Commit) -> TableState:
        """The state of the table after `commit`, from the state before."""
        return state.apply_commit(commit, self.root)

    def read_changes(self, commit: Commit, state: TableState) -> RowVersion:
        """The rows that a commit changed. Raises DataLoss for changes that the source cannot read."""
        if self._options.changes == "appended":
            if commit.removes:
                raise rewritten_error(self.name, commit.version, commit.operation)
            files = [("insert", file) for file in commit.adds]
        else:
            if commit.removes and not commit.feed and not state.has_feed:
                raise missing_feed_error(self.name, commit.version)
            both = [("delete", file) for file in commit.removes] + [("insert", file) for file in commit.adds]
            files = [(FEED, file) for file in commit.feed] or both
        return self._to_version(commit.version, commit.at, state, [(OPS[kind], file) for kind, file in files])

    def read_whole(self, version: int) -> RowVersion:
        """All rows of the table in `version`, older files first. Raises DataLoss if they are no longer available."""
        state = self.read_state(version)
        with self._opened.translate_errors():
            files = list_files(self._opened.open_version(version))
        at = self.read_commit(version).at if self.has_version(version) else None
        found = self._number_files(version, at, state, [(self._locate(version, file), "r", file) for file in files])
        return RowVersion(Content(**{**vars(found.content), "whole": True}), found.files)

    def _to_version(
        self, version: int, at: int | None, state: TableState, files: Iterable[tuple[str, CommitFile]]
    ) -> RowVersion:
        """Deletes first, so that in the stream, too, an old row is deleted before another row of its key arrives."""
        named = [(self._locate(version, file), op, file) for op, file in files]
        return self._number_files(version, at, state, sorted(named, key=lambda one: (one[1] != "d", str(one[0]))))

    def _locate(self, version: int, file: CommitFile) -> FileLocation:
        """The location of a file. Commits may omit the size of removed files."""
        try:
            return self._opened.root.locate(file.path, file.size)
        except FileNotFoundError as gone:
            raise vacuumed_error(self.name, version, file.path) from gone

    def _number_files(
        self, version: int, at: int | None, state: TableState, files: Iterable[tuple[FileLocation, str, CommitFile]]
    ) -> RowVersion:
        """The files with rows numbered through all of them. `files` has path, operation and commit entry of each."""
        found, first = [], 0
        for path, op, file in files:
            rows = self._count_rows(version, path, file)
            partition = state.read_partition(self._read_partition(version, file, state))
            found.append(TableFile(path, op, rows, partition, first))
            first += rows
        if first > MOST_ROWS:
            raise Fatal(
                f"Version {version} of the table {self.name} has {first} rows, of which only {MOST_ROWS} can be numbered."
            )
        left_out = state.hidden_columns(self._options.columns)
        return RowVersion(Content(self.name, version, False, at, state.schema, left_out, self._options.masked), tuple(found))

    def _count_rows(self, version: int, path: FileLocation, file: CommitFile) -> int:
        said = _read_row_count(file.stats)
        if said is not None:
            return said
        try:
            with open_parquet(path) as reader:
                return int(reader.metadata.num_rows)
        except FileRewritten as gone:
            raise vacuumed_error(self.name, version, str(gone.path)) from gone

    def _read_partition(self, version: int, file: CommitFile, state: TableState) -> dict[str, str | None]:
        if file.partitionValues is None and state.partition_by:
            raise Fatal(
                f"Version {version} of the table {self.name} does not say of which partition the rows are that it removes.",
                next_step="Load the table as it is now with `replicator lanes resync LANE`.",
            )
        return file.partitionValues or {}

    def _refuse_without_feed(self, state: TableState) -> None:
        if self._options.changes == "feed" and not state.has_feed:
            raise ConfigProblem(
                f"The table in {self.root} has no change data feed.",
                next_step=f"ALTER TABLE ... SET TBLPROPERTIES ({FEED_IS_ON} = true); a target of ours gets it with "
                "`change_data_feed: true`. Or write `changes: appended`.",
            )


OPS = {"insert": "c", "delete": "d", FEED: FEED}
