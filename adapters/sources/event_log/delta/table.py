"""An event log as a list of files per table version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem
from replicator.domain.position import Position, TopicPartition

from ....delta.commits import LaneLog
from ....delta.folder_names import decode_name
from ....delta.folders import FileLocation, Folder
from ....delta.lake import HOME
from ....delta.log_retention import removal_app_id
from ....delta.position_files import PositionFiles
from ....delta.tables import read_schema
from ....object_store.options import Storage
from ...delta_reader.open_table import SourceDeltaTable

READABLE = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "appendOnly", "invariants"})
"""Table features that do not affect readers of single Parquet files."""
STATISTICS = ("min.offset", "max.offset", "min.partition", "max.partition")
MISSING = "Start the pipeline that writes this event log first, or correct 'path' of the source."
PLAIN = "Name the folder of an `event_log` sink in `path`; or, for the rows of a plain table, write `format: rows`."


@dataclass(frozen=True, slots=True)
class LogFile:
    """One data file of one topic. `offsets` and `partitions`: first and last in it, if the table has statistics."""

    path: FileLocation
    topic: str
    offsets: tuple[int, int] | None
    partitions: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """The files of one version of the table with the id `table`, for the wanted topics. `covered`: the positions of the
    lanes that write the log, which may be above the last record (transaction markers)."""

    table: str
    version: int
    files: tuple[LogFile, ...]
    covered: Position


class EventLogTable:
    """The event log at `path` (see `SourceDeltaTable`). `wanted` selects topics. Not safe for several threads."""

    def __init__(self, path: str, wanted: Callable[[str], bool], storage: Storage | None = None) -> None:
        self._opened = SourceDeltaTable(path, MISSING, storage)
        self.root = self._opened.root
        self._wanted = wanted
        self._snapshot: LogSnapshot | None = None
        self._table: DeltaTable | None = None

    def newest(self) -> LogSnapshot:
        """The newest version; the same object if there is no newer one. Raises EnvironmentProblem if there is no table,
        ConfigProblem if it is unsupported."""
        with self._opened.translate_errors():
            table = self._opened.newest()
            if self._snapshot is None or table is not self._table or self._snapshot.version != table.version():
                refuse_others(table, self.root)
                files = tuple(file for file in _list_files(table, self.root) if self._wanted(file.topic))
                self._snapshot = LogSnapshot(str(table.metadata().id), table.version(), files, self._read_covered(table))
                self._table = table
            return self._snapshot

    def read_removed(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """For each of these partitions with removed records the offset below which the log removed them, as of its newest
        version."""
        with self._opened.translate_errors():
            table = self._opened.newest()
            cuts = {place: table.transaction_version(removal_app_id(place)) for place in places}
            return {place: cut for place, cut in cuts.items() if cut is not None}

    def _read_covered(self, table: DeltaTable) -> Position:
        found = Position()
        pipelines = (self.root / HOME / "positions").folders()
        for folder in (lane for pipeline in pipelines for lane in pipeline.folders()):
            pipeline, lane = decode_name(folder.parent.name), decode_name(folder.name)
            positions = PositionFiles(folder, lane)
            log = LaneLog(self.root, pipeline, lane, positions)
            # A copy of the table may lack these files.
            state = log.state(table) if positions.has_version(log.version(table)) else None
            if state is not None:
                found = found.advanced_to({p: o for p, o in state.position.items() if self._wanted(p.topic)})
        return found


def refuse_others(table: DeltaTable, root: Folder) -> None:
    """Raise ConfigProblem for a table that is not an event log, or whose rows need more than its files."""
    missing = sorted(set(RAW.names) - set(read_schema(table).names))
    if missing:
        raise ConfigProblem(
            f"The table in {root} is not an event log: it lacks the column(s) {', '.join(missing)}.", next_step=PLAIN
        )
    if "topic" not in table.metadata().partition_columns:
        raise ConfigProblem(f"The table in {root} is not an event log: it is not partitioned by topic.", next_step=PLAIN)
    unknown = sorted(set(table.protocol().reader_features or ()) - READABLE)
    if unknown:
        raise ConfigProblem(
            f"The event log in {root} has the Delta feature(s) {', '.join(unknown)}, which this source does not read.",
            next_step="Drop the feature (ALTER TABLE ... DROP FEATURE ...), or read a copy of the table without it.",
        )


def _list_files(table: DeltaTable, root: Folder) -> Iterator[LogFile]:
    actions = pa.table(table.get_add_actions(flatten=True))
    names = [n for n in ("path", "size_bytes", "partition.topic", *STATISTICS) if n in actions.column_names]
    for row in actions.select(names).to_pylist():
        offsets, partitions = _read_range(row, "offset"), _read_range(row, "partition")
        yield LogFile(root.locate(row["path"], row["size_bytes"]), row["partition.topic"], offsets, partitions)


def _read_range(row: dict[str, Any], column: str) -> tuple[int, int] | None:
    first, last = row.get(f"min.{column}"), row.get(f"max.{column}")
    return None if first is None or last is None else (first, last)
