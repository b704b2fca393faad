"""A Delta table as a list of splits per version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import DeltaError
from pyarrow import types as t

from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Fatal, describe_reload_or_skip
from replicator.domain.out_of_range import FIRST_MS, LAST_MS
from replicator.domain.table import RESERVED_PREFIXES

from ...delta.folders import FileLocation, Folder
from ...delta.table_reader import table_name
from ...delta.tables import commit_file_name
from ...delta.types import storage_type
from ..delta_options import DeltaSourceSettings
from ..delta_reader import FileRewritten, SourceDeltaTable, open_parquet
from ..event_log.delta_log import READABLE as LOG_READABLE
from .splits import FEED, MOST_ROWS, OWN, Content, TableFile, first_change_offset

MISSING = "Start the pipeline that writes the table first, or correct 'path' of the source."


class FileStatistics(msgspec.Struct):
    """The statistics of a file in a commit."""

    records: int | None = msgspec.field(default=None, name="numRecords")


_stats = msgspec.json.Decoder(FileStatistics).decode


@dataclass(frozen=True)
class RowVersion:
    """The rows that a version changed, or all its rows: the files in the order in which rows are numbered."""

    content: Content
    files: tuple[TableFile, ...]


class RowsTable:
    """The table in the folder or at the URL `path`. Files and their rows never change after they were written. So all
    readers number the rows of a version in the same way, by the paths of its files. Not safe for use from several
    threads."""

    def __init__(self, options: DeltaSourceSettings, path: str) -> None:
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
                if self._options.changes == FEED and not state.has_feed:
                    raise ConfigProblem(
                        f"The table in {self.root} has no change data feed.",
                        next_step=f"ALTER TABLE ... SET TBLPROPERTIES ({FEED_IS_ON} = true); a target of ours gets it with "
                        "`change_data_feed: true`. Or write `changes: appended`.",
                    )
                self._id = (table, state.table)
            return int(table.version())

    def read_identity(self) -> str:
        """The id of the current table."""
        self.find_newest()
        return self._id[1]

    def find_oldest(self) -> int:
        """The first version after which no commit is missing."""
        version, log_files = self.find_newest(), {*self._opened.log.files()}
        while version > 0 and commit_file_name(version - 1) in log_files:
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
        except FileNotFoundError as error:
            raise cleaned_error(self.name, version) from error

    def has_version(self, version: int) -> bool:
        """True if the commit of the version is available."""
        return self._opened.log.has_file(commit_file_name(version))

    def read_changes(self, commit: Commit, state: TableState) -> RowVersion:
        """The rows that a commit changed. Raises DataLoss for changes that the source cannot read."""
        if self._options.changes != FEED:
            if commit.removes:
                raise rewritten_error(self.name, commit.version, commit.operation)
            files = [("insert", file) for file in commit.adds]
        else:
            if commit.removes and not commit.feed and not state.has_feed:
                raise missing_feed_error(self.name, commit.version)
            both = [("delete", file) for file in commit.removes] + [("insert", file) for file in commit.adds]
            files = [(FEED, file) for file in commit.feed] or both
        changes = [(self._locate(commit.version, file), OPS[kind], file) for kind, file in files]
        # Deletes first, so that in the stream, too, an old row is deleted before another row of its key arrives.
        changes.sort(key=lambda one: (one[1] != "d", str(one[0])))
        return self._number_files(commit.version, commit.at, state, changes)

    def read_whole(self, version: int) -> RowVersion:
        """All rows of the table in `version`, older files first. Raises DataLoss if they are no longer available."""
        state = self.read_state(version)
        with self._opened.translate_errors():
            files = list_files(self._opened.open_version(version))
        at = self.read_commit(version).at if self.has_version(version) else None
        numbered = self._number_files(version, at, state, [(self._locate(version, file), "r", file) for file in files])
        return RowVersion(Content(**{**vars(numbered.content), "whole": True}), numbered.files)

    def _locate(self, version: int, file: CommitFile) -> FileLocation:
        """The location of a file. Commits may omit the size of removed files."""
        try:
            return self._opened.root.locate(file.path, file.size)
        except FileNotFoundError as error:
            raise vacuumed_error(self.name, version, file.path) from error

    def _number_files(
        self, version: int, at: int | None, state: TableState, files: Iterable[tuple[FileLocation, str, CommitFile]]
    ) -> RowVersion:
        """The files with rows numbered through all of them. `files` has path, operation and commit entry of each."""
        numbered, first = [], 0
        for path, op, file in files:
            rows = self._count_rows(version, path, file)
            if file.partitionValues is None and state.partition_by:
                raise Fatal(
                    f"Version {version} of the table {self.name} does not say of which partition the rows are that it "
                    "removes.",
                    next_step="Load the table as it is now with `replicator lanes resync LANE`.",
                )
            partition = state.read_partition(file.partitionValues or {})
            numbered.append(TableFile(path, op, rows, partition, first))
            first += rows
        if first > MOST_ROWS:
            raise Fatal(
                f"Version {version} of the table {self.name} has {first} rows, of which only {MOST_ROWS} can be numbered."
            )
        left_out = state.hidden_columns(self._options.columns)
        content = Content(self.name, version, False, at, state.schema, left_out, self._options.masked)
        return RowVersion(content, tuple(numbered))

    def _count_rows(self, version: int, path: FileLocation, file: CommitFile) -> int:
        try:
            count = _stats(file.stats).records if file.stats else None
        except (msgspec.DecodeError, UnicodeError):
            count = None
        if count is not None:
            return count
        try:
            with open_parquet(path) as reader:
                return int(reader.metadata.num_rows)
        except FileRewritten as error:
            raise vacuumed_error(self.name, version, str(error.path)) from error


OPS = {"insert": "c", "delete": "d", FEED: FEED}


# Commits of a Delta table, and the state of the table that they define.

READER = 3
"""The reader version that lists its features by name."""
READABLE = LOG_READABLE | {"changeDataFeed"}
FEED_IS_ON = "delta.enableChangeDataFeed"
MAPPING = "delta.columnMapping.mode"
OF_A_MIRROR = {"_cdc_op", "_event_id"}
"""Columns that only targets of Replicator have."""


class CommitFile(msgspec.Struct, frozen=True):
    """A file that a commit adds, removes, or fills with changes."""

    path: str
    size: int | None = None
    partitionValues: dict[str, str | None] | None = None  # noqa: N815 - the protocol's names
    dataChange: bool = True  # noqa: N815
    stats: str | None = None
    deletionVector: msgspec.Raw | None = None  # noqa: N815


class TableMetadata(msgspec.Struct, frozen=True):
    """Table metadata, valid from a commit on."""

    id: str
    schemaString: str  # noqa: N815
    partitionColumns: tuple[str, ...] = ()  # noqa: N815
    configuration: dict[str, str | None] = {}


class TableProtocol(msgspec.Struct, frozen=True):
    """The protocol features that a reader must support."""

    minReaderVersion: int  # noqa: N815
    readerFeatures: tuple[str, ...] | None = None  # noqa: N815


class CommitInfo(msgspec.Struct, frozen=True):
    """The writer's description of its commit."""

    timestamp: int | None = None
    operation: str | None = None


class CommitAction(msgspec.Struct, frozen=True):
    """One line of a commit."""

    add: CommitFile | None = None
    remove: CommitFile | None = None
    cdc: CommitFile | None = None
    metaData: TableMetadata | None = None  # noqa: N815
    protocol: TableProtocol | None = None
    commitInfo: CommitInfo | None = None  # noqa: N815


_action = msgspec.json.Decoder(CommitAction).decode


@dataclass(frozen=True)
class Commit:
    """A version of the table."""

    version: int
    actions: tuple[CommitAction, ...]

    @classmethod
    def read(cls, version: int, log: Folder) -> Commit:
        """The commit of that version in a table's log. Raises FileNotFoundError; EnvironmentProblem if unreadable."""
        name = commit_file_name(version)
        try:
            # Only a newline ends an action: text may contain other characters that Python treats as line
            # ends.
            return cls(version, tuple(_action(line) for line in log.load(name).split("\n") if line.strip()))
        except (msgspec.MsgspecError, UnicodeDecodeError) as damage:
            raise EnvironmentProblem(
                f"The commit {log.uri}/{name} is damaged: {damage}", next_step="Restore it from a copy of the table."
            ) from damage

    @property
    def adds(self) -> list[CommitFile]:
        """Files with rows that are new or changed."""
        return [a.add for a in self.actions if a.add is not None and a.add.dataChange]

    @property
    def removes(self) -> list[CommitFile]:
        """Files with rows that were deleted or changed."""
        return [a.remove for a in self.actions if a.remove is not None and a.remove.dataChange]

    @property
    def feed(self) -> list[CommitFile]:
        """Files of the change data feed. If there are any, they contain all changes."""
        return [a.cdc for a in self.actions if a.cdc is not None]

    @property
    def at(self) -> int | None:
        """The commit time in milliseconds since 1970; None if it is missing or out of range."""
        at = next((a.commitInfo.timestamp for a in self.actions if a.commitInfo is not None), None)
        return at if at is not None and FIRST_MS <= at <= LAST_MS else None

    @property
    def operation(self) -> str:
        """The writer's name for the operation."""
        return next((a.commitInfo.operation or "" for a in self.actions if a.commitInfo is not None), "")[:40]


@dataclass(frozen=True)
class TableState:
    """The state of the table in one version. `schema`: its columns, with the names in its files."""

    table: str
    schema: pa.Schema
    partition_by: tuple[str, ...]
    settings: Mapping[str, str | None]

    @classmethod
    def from_table(cls, table: DeltaTable) -> TableState:
        """The state of an opened table. Raises ConfigProblem for a table that this source cannot read."""
        metadata, protocol = table.metadata(), table.protocol()
        refuse_protocol(TableProtocol(protocol.min_reader_version, tuple(protocol.reader_features or ())), table.table_uri)
        schema = _file_schema(table.schema())
        columns = tuple(metadata.partition_columns)
        return cls(str(metadata.id), schema, columns, metadata.configuration).check(table.table_uri)

    def apply_commit(self, commit: Commit, root: str) -> TableState:
        """The state from `commit` on."""
        state = self
        for action in commit.actions:
            if action.protocol is not None:
                refuse_protocol(action.protocol, root)
            if action.metaData is not None:
                metadata = action.metaData
                schema = _file_schema(DeltaSchema.from_json(metadata.schemaString))
                state = TableState(metadata.id, schema, metadata.partitionColumns, metadata.configuration).check(root)
        return state

    def check(self, where: str) -> TableState:
        """Returns itself, or raises ConfigProblem that names the unsupported feature."""
        if (self.settings.get(MAPPING) or "none") != "none":
            raise _unreadable_error(where, "column mapping", "Read a copy of the table that was made without it.")
        own = [name for name in OWN if name in self.schema.names]
        if own:
            raise _unreadable_error(where, f"a column {own[0]!r}, which is reserved", "Rename the column.")
        for name in self.partition_by:
            kind = self.schema.field(name).type
            if not (t.is_string(kind) or t.is_integer(kind) or t.is_boolean(kind) or t.is_date(kind) or t.is_decimal(kind)):
                raise _unreadable_error(
                    where, f"partitions by column {name!r} of type {kind}", "Partition it by another column."
                )
        return self

    @property
    def has_feed(self) -> bool:
        """True if the table has a change data feed."""
        return (self.settings.get(FEED_IS_ON) or "").lower() == "true"

    def hidden_columns(self, wanted: Iterable[str]) -> frozenset[str]:
        """The bookkeeping columns of a target of Replicator, which are not data, except for those in `wanted`."""
        if not set(self.schema.names) >= OF_A_MIRROR:
            return frozenset()
        if "_cdc_op" in wanted and "_cdc_unsent" in self.schema.names:
            raise ConfigProblem(
                "Recorded changes (`operation_column: _cdc_op`) are no rows: they lack values that were not sent.",
                next_step="Read the event log instead, or a mirror of the table with `changes: feed`.",
            )
        return frozenset(name for name in self.schema.names if name.startswith(RESERVED_PREFIXES)) - set(wanted)

    def read_partition(self, texts: Mapping[str, str | None]) -> tuple[tuple[str, Any], ...]:
        """The partition columns of a file with their text; empty text is null."""
        return tuple((name, texts.get(name) or None) for name in self.partition_by)


def refuse_protocol(protocol: TableProtocol, where: str) -> None:
    """Raise ConfigProblem for a table whose rows need more than its files."""
    unknown = sorted(set(protocol.readerFeatures or ()) - READABLE - {"columnMapping"})
    if unknown:
        step = "Drop the feature (ALTER TABLE ... DROP FEATURE ...), or read a copy of the table without it."
        raise _unreadable_error(where, f"the Delta feature(s) {', '.join(unknown)}", step)
    if protocol.minReaderVersion > READER:
        raise _unreadable_error(
            where, f"reader version {protocol.minReaderVersion} of the Delta protocol", "Update replicator."
        )


def _unreadable_error(where: str, feature: str, step: str) -> ConfigProblem:
    return ConfigProblem(f"The table in {where} has {feature}, which this source does not read.", next_step=step)


def _file_schema(schema: DeltaSchema) -> pa.Schema:
    arrow = pa.schema(schema.to_arrow())
    return pa.schema([pa.field(field.name, storage_type(field.type)) for field in arrow])


def list_files(table: DeltaTable) -> list[CommitFile]:
    """The files of the table in its version, as if one commit had added them all. In the order in which they were
    written, as far as their times are known."""
    actions = pa.table(table.get_add_actions(flatten=True)).sort_by(
        [("modification_time", "ascending"), ("path", "ascending")]
    )
    names = table.metadata().partition_columns
    texts = {name: pc.cast(actions[f"partition.{name}"], pa.string()).to_pylist() for name in names}
    sizes = actions["size_bytes"].to_pylist()
    counts = actions["num_records"].to_pylist() if "num_records" in actions.column_names else [None] * len(actions)
    stats = [None if count is None else f'{{"numRecords":{count}}}' for count in counts]
    return [
        CommitFile(path, size, {name: texts[name][i] for name in names}, True, stats[i])
        for i, (path, size) in enumerate(zip(actions["path"].to_pylist(), sizes, strict=True))
    ]


# Errors for rows of a table that cannot be read any more.

KEEP = "Longer `delta.logRetentionDuration` and `delta.deletedFileRetentionDuration` of the table keep more for a reader."


def _position_after(name: str, version: int) -> str:
    """The position after a version, for `--until`. A start from there does not detect the loss of the version."""
    return f"{name}:0:{first_change_offset(version + 1)}"


def cleaned_error(name: str, version: int) -> DataLoss:
    """The error for a version whose commit is missing before it was read."""
    return DataLoss(
        f"Version {version} of the table {name} is no longer in its log.", next_step=f"{describe_reload_or_skip()} {KEEP}"
    )


def vacuumed_error(name: str, version: int, path: str) -> DataLoss:
    """The error for a version with a missing file before it was read."""
    return DataLoss(
        f"Version {version} of the table {name} cannot be read any more: its file {path} was removed (VACUUM).",
        next_step=f"{describe_reload_or_skip(until=_position_after(name, version))} {KEEP}",
    )


def other_table_error(name: str) -> DataLoss:
    """The error for a table that was replaced by another one."""
    return DataLoss(
        f"The table {name} was created again: it is another table than before.",
        next_step="Restore the earlier table, or load this one with `replicator lanes resync LANE`.",
    )


def rewritten_error(name: str, version: int, operation: str) -> DataLoss:
    """The error for a version that did more than append rows."""
    called = f" ({operation})" if operation else ""
    return DataLoss(
        f"Version {version} of the table {name} changes or deletes rows{called}, and the source reads appended ones only; "
        "with `changes: feed` it reads them all.",
        next_step="Write `changes: feed` for this source (the table needs delta.enableChangeDataFeed), and load its targets "
        "with `replicator lanes resync LANE`; or accept the loss with "
        f"`replicator lanes skip LANE --until {_position_after(name, version)}`.",
    )


def missing_feed_error(name: str, version: int) -> DataLoss:
    """The error for a version that was written without a change data feed."""
    return DataLoss(
        f"Version {version} of the table {name} was written without a change data feed.",
        next_step=f"Set delta.enableChangeDataFeed on the table. Then "
        f"{describe_reload_or_skip(until=_position_after(name, version))}",
    )
