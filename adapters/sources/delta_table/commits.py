"""Commits of a Delta table, and the state of the table that they define."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from pyarrow import types as t

from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.domain.table import RESERVED_PREFIXES
from replicator.domain.time_bounds import FIRST_MS, LAST_MS

from ...delta.folders import Folder
from ...delta.latest_version import commit_file_name
from ...delta.types import storage_type
from ..event_log.delta.table import READABLE as LOG_READABLE
from .encoder import OWN

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
        found, protocol = table.metadata(), table.protocol()
        refuse_protocol(TableProtocol(protocol.min_reader_version, tuple(protocol.reader_features or ())), table.table_uri)
        schema = _file_schema(table.schema())
        return cls(str(found.id), schema, tuple(found.partition_columns), found.configuration).check(table.table_uri)

    def apply_commit(self, commit: Commit, root: str) -> TableState:
        """The state from `commit` on."""
        state = self
        for action in commit.actions:
            if action.protocol is not None:
                refuse_protocol(action.protocol, root)
            if action.metaData is not None:
                said = action.metaData
                schema = _file_schema(DeltaSchema.from_json(said.schemaString))
                state = TableState(said.id, schema, said.partitionColumns, said.configuration).check(root)
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

    def hidden_columns(self, kept: Iterable[str]) -> frozenset[str]:
        """The bookkeeping columns of a target of Replicator, which are not data, except for those in `kept`."""
        if not set(self.schema.names) >= OF_A_MIRROR:
            return frozenset()
        if "_cdc_op" in kept and "_cdc_unsent" in self.schema.names:
            raise ConfigProblem(
                "Recorded changes (`operation_column: _cdc_op`) are no rows: they lack values that were not sent.",
                next_step="Read the event log instead, or a mirror of the table with `changes: feed`.",
            )
        return frozenset(name for name in self.schema.names if name.startswith(RESERVED_PREFIXES)) - set(kept)

    def read_partition(self, said: Mapping[str, str | None]) -> tuple[tuple[str, Any], ...]:
        """The partition columns of a file with their text; empty text is null."""
        return tuple((name, said.get(name) or None) for name in self.partition_by)


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


def _unreadable_error(where: str, what: str, step: str) -> ConfigProblem:
    return ConfigProblem(f"The table in {where} has {what}, which this source does not read.", next_step=step)


def _file_schema(schema: DeltaSchema) -> pa.Schema:
    found = pa.schema(schema.to_arrow())
    return pa.schema([pa.field(field.name, storage_type(field.type)) for field in found])


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
    return [
        CommitFile(path, size, {name: texts[name][i] for name in names}, True, _make_stats(count))
        for i, (path, size, count) in enumerate(zip(actions["path"].to_pylist(), sizes, counts, strict=True))
    ]


def _make_stats(count: int | None) -> str | None:
    return None if count is None else f'{{"numRecords":{count}}}'
