"""An event log as a list of files per table version, with their ranges of offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem
from replicator.domain.position import Position, TopicPartition
from replicator.ports.options import StorageSettings

from ....delta.commits import LaneLog, PositionFiles
from ....delta.folders import FileLocation, Folder
from ....delta.lake import HOME, decode_name
from ....delta.log_retention import removal_app_id
from ....delta.tables import read_schema
from ....event_log import LogBounds
from ...delta_reader import SourceDeltaTable, open_parquet

# An event log as a list of files per table version.

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

    def __init__(self, path: str, wanted: Callable[[str], bool], storage: StorageSettings | None = None) -> None:
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


# Offset ranges of the files of an event log.

Range = tuple[int, int]
"""First and last offset."""
ROWS = 65_536


class OffsetRanges:
    """First and last offset by file and partition. They come from the table's statistics for files of one partition,
    otherwise from the file's `partition` and `offset` columns, which are read once. `read_ranges` is safe for use from
    several threads."""

    def __init__(self) -> None:
        self._known: dict[FileLocation, Mapping[int, Range]] = {}

    def read_ranges(self, file: LogFile) -> Mapping[int, Range]:
        """The ranges of `file` by partition. Raises FileRewritten if it does not exist any more."""
        known = self._known.get(file.path)
        if known is None:
            known = self._known[file.path] = _read_ranges(file)
        return known

    def keep_only(self, files: Iterable[LogFile]) -> None:
        """Drop cached ranges of all other files."""
        paths = {file.path for file in files}
        self._known = {path: known for path, known in self._known.items() if path in paths}

    def find_bounds(self, snapshot: LogSnapshot) -> LogBounds:
        """The bounds of the log. Does not open files in between."""
        firsts = self._find_extremes(snapshot.files, 0)
        ends = {place: last + 1 for place, last in self._find_extremes(snapshot.files, 1).items()}
        for place, covered in snapshot.covered.items():
            ends[place] = max(covered, ends.get(place, covered))
            firsts.setdefault(place, covered)
        return LogBounds(Position(firsts), Position(ends))

    def _find_extremes(self, files: Iterable[LogFile], side: int) -> dict[TopicPartition, int]:
        """The lowest (side 0) or highest (side 1) offset of every partition."""
        sign = 1 if side == 0 else -1
        found: dict[TopicPartition, int] = {}
        # Files without statistics must be read anyway, so they are first.
        for file in sorted(files, key=lambda f: (0, 0) if f.offsets is None else (1, sign * f.offsets[side])):
            if not _can_skip(file, side, sign, found):
                for number, offsets in self.read_ranges(file).items():
                    place = TopicPartition(file.topic, number)
                    found[place] = sign * min(sign * offsets[side], sign * found.get(place, offsets[side]))
        return found


def _can_skip(file: LogFile, side: int, sign: int, found: Mapping[TopicPartition, int]) -> bool:
    """True if statistics show that no partition of the file exceeds the found offsets."""
    if file.offsets is None or file.partitions is None:
        return False
    best, (low, high) = sign * file.offsets[side], file.partitions
    return all(
        (place := TopicPartition(file.topic, number)) in found and sign * found[place] <= best
        for number in range(low, high + 1)
    )


def _read_ranges(file: LogFile) -> Mapping[int, Range]:
    if file.offsets is not None and file.partitions is not None and file.partitions[0] == file.partitions[1]:
        return {file.partitions[0]: file.offsets}
    found: dict[int, Range] = {}
    with open_parquet(file.path) as reader:
        for batch in reader.iter_batches(ROWS, columns=["partition", "offset"]):
            per = pa.table(batch).group_by("partition").aggregate([("offset", "min"), ("offset", "max")])
            for row in per.to_pylist():
                first, last = found.get(row["partition"], (row["offset_min"], row["offset_max"]))
                found[row["partition"]] = (min(first, row["offset_min"]), max(last, row["offset_max"]))
    return found
