"""An event log in a Delta table: its files per table version, with their ranges of offsets, and how they are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, refuse_losses
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Batch, ConsumeBatch, F, Stop
from replicator.ports.options import StorageSettings

from ...delta.commits import LaneLog, PositionFiles, removal_app_id
from ...delta.folders import FileLocation, Folder
from ...delta.lake import HOME, decode_name
from ...delta.tables import read_schema
from ...event_log import ACCEPT, LogBounds, describe_removed, recreated_error
from ..delta_reader import FileRewritten, SourceDeltaTable, WindowSize, WindowTooLarge, open_parquet
from .source import iterate, read_ahead

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


class DeltaLog(SourceDeltaTable):
    """The event log at `path` (see `SourceDeltaTable`), and the offset ranges of its files. `is_wanted` selects topics.
    `below`: the position at which the log ends for this reader. Not safe for several threads."""

    def __init__(
        self,
        path: str,
        is_wanted: Callable[[str], bool],
        storage: StorageSettings | None = None,
        below: Position | None = None,
    ) -> None:
        super().__init__(path, MISSING, storage)
        self.ranges, self._wanted, self._below = OffsetRanges(), is_wanted, below
        self._snapshot: LogSnapshot | None = None
        self._table: DeltaTable | None = None

    def read_latest(self) -> tuple[LogSnapshot, LogBounds]:
        """The newest version and its bounds."""
        while True:
            snapshot = self.read_snapshot()
            try:
                return snapshot, self.ranges.find_bounds(snapshot).limit_to(self._below)
            except FileRewritten as error:
                self.refuse_missing(error)

    def refuse_missing(self, error: FileRewritten) -> None:
        """Raise EnvironmentProblem if the newest version still contains the missing file."""
        if any(file.path == error.path for file in self.read_snapshot().files):
            raise EnvironmentProblem(
                f"The event log names the file {error.path}, which is gone.",
                next_step="Restore it from a copy; or, if its records are lost, let deltalake forget the file: "
                "`DeltaTable(path).repair()`.",
            )

    def read_snapshot(self) -> LogSnapshot:
        """The newest version; the same object if there is no newer one. Raises EnvironmentProblem if there is no table,
        ConfigProblem if it is unsupported."""
        with self.translate_errors():
            table = self.newest()
            if self._snapshot is not None and table is self._table and self._snapshot.version == table.version():
                return self._snapshot
            refuse_others(table, self.root)
            actions = pa.table(table.get_add_actions(flatten=True))
            names = [n for n in ("path", "size_bytes", "partition.topic", *STATISTICS) if n in actions.column_names]
            files = []
            for row in actions.select(names).to_pylist():
                if self._wanted(row["partition.topic"]):
                    path = self.root.locate(row["path"], row["size_bytes"])
                    offsets, partitions = _read_range(row, "offset"), _read_range(row, "partition")
                    files.append(LogFile(path, row["partition.topic"], offsets, partitions))
            covered = self._read_covered(table)
            self._snapshot = LogSnapshot(str(table.metadata().id), table.version(), tuple(files), covered)
            self._table = table
            return self._snapshot

    def read_removed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """For each of these partitions with removed records the offset below which the log removed them, as of its newest
        version."""
        with self.translate_errors():
            table = self.newest()
            cuts = {partition: table.transaction_version(removal_app_id(partition)) for partition in partitions}
            return {partition: cut for partition, cut in cuts.items() if cut is not None}

    def _read_covered(self, table: DeltaTable) -> Position:
        covered = Position()
        pipelines = (self.root / HOME / "positions").folders()
        for folder in (lane for pipeline in pipelines for lane in pipeline.folders()):
            pipeline, lane = decode_name(folder.parent.name), decode_name(folder.name)
            positions = PositionFiles(folder, lane)
            log = LaneLog(self.root, pipeline, lane, positions)
            # A copy of the table may lack these files.
            state = log.state(table) if positions.has_file_of_commit(log.read_commit_number(table)) else None
            if state is not None:
                covered = covered.advanced_to({p: o for p, o in state.position.items() if self._wanted(p.topic)})
        return covered


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


def _read_range(row: dict[str, Any], column: str) -> tuple[int, int] | None:
    first, last = row.get(f"min.{column}"), row.get(f"max.{column}")
    return None if first is None or last is None else (first, last)


# Offset ranges of the files of an event log.

Range = tuple[int, int]
"""First and last offset."""
SLICE_ROWS = 65_536


class OffsetRanges:
    """First and last offset by file and partition. They come from the table's statistics for files of one partition,
    otherwise from the file's `partition` and `offset` columns, which are read once. `read_ranges` is safe for use from
    several threads."""

    def __init__(self) -> None:
        self._known: dict[FileLocation, Mapping[int, Range]] = {}

    def read_ranges(self, file: LogFile) -> Mapping[int, Range]:
        """The ranges of `file` by partition. Raises FileRewritten if it does not exist any more."""
        cached = self._known.get(file.path)
        if cached is not None:
            return cached
        ranges: dict[int, Range] = {}
        if file.offsets is not None and file.partitions is not None and file.partitions[0] == file.partitions[1]:
            ranges[file.partitions[0]] = file.offsets
            self._known[file.path] = ranges
            return ranges
        with open_parquet(file.path) as reader:
            for batch in reader.iter_batches(SLICE_ROWS, columns=["partition", "offset"]):
                per = pa.table(batch).group_by("partition").aggregate([("offset", "min"), ("offset", "max")])
                for row in per.to_pylist():
                    first, last = ranges.get(row["partition"], (row["offset_min"], row["offset_max"]))
                    ranges[row["partition"]] = (min(first, row["offset_min"]), max(last, row["offset_max"]))
        self._known[file.path] = ranges
        return ranges

    def keep_only(self, files: Iterable[LogFile]) -> None:
        """Drop cached ranges of all other files."""
        paths = {file.path for file in files}
        self._known = {path: ranges for path, ranges in self._known.items() if path in paths}

    def find_bounds(self, snapshot: LogSnapshot) -> LogBounds:
        """The bounds of the log. Does not open files in between."""
        firsts = self._find_extremes(snapshot.files, 0)
        ends = {partition: last + 1 for partition, last in self._find_extremes(snapshot.files, 1).items()}
        for partition, covered in snapshot.covered.items():
            ends[partition] = max(covered, ends.get(partition, covered))
            firsts.setdefault(partition, covered)
        return LogBounds(Position(firsts), Position(ends))

    def _find_extremes(self, files: Iterable[LogFile], side: int) -> dict[TopicPartition, int]:
        """The lowest (side 0) or highest (side 1) offset of every partition."""
        sign = 1 if side == 0 else -1
        extremes: dict[TopicPartition, int] = {}
        # Files without statistics must be read anyway, so they are first.
        for file in sorted(files, key=lambda f: (0, 0) if f.offsets is None else (1, sign * f.offsets[side])):
            if not _can_skip(file, side, sign, extremes):
                for number, offsets in self.read_ranges(file).items():
                    partition = TopicPartition(file.topic, number)
                    extremes[partition] = sign * min(sign * offsets[side], sign * extremes.get(partition, offsets[side]))
        return extremes


def _can_skip(file: LogFile, side: int, sign: int, extremes: Mapping[TopicPartition, int]) -> bool:
    """True if statistics show that no partition of the file exceeds the found offsets."""
    if file.offsets is None or file.partitions is None:
        return False
    best, (low, high) = sign * file.offsets[side], file.partitions
    return all(
        (partition := TopicPartition(file.topic, number)) in extremes and sign * extremes[partition] <= best
        for number in range(low, high + 1)
    )


# The unread part of an event log, in windows that are read at once.


@dataclass(frozen=True)
class ReadWindow:
    """A span of offsets, and every file that may contain records of it."""

    span: Span
    files: tuple[LogFile, ...]


class Backlog:
    """Files with records to deliver, from `next` up to `until` if given.

    The order of files, and of rows in them, does not matter: a window includes all files that overlap it. Windows of a
    partition follow each other without gaps.
    """

    def __init__(self, ranges: OffsetRanges, start: Mapping[TopicPartition, int], until: Position | None = None) -> None:
        self.next = dict(start)
        self._ranges, self._until = ranges, until
        self._files: deque[LogFile] = deque()

    def add(self, files: Iterable[LogFile]) -> None:
        """Add files to read."""
        every = sorted({*self._files, *files}, key=lambda f: (f.topic, (-1, -1) if f.offsets is None else f.offsets, f.path))
        self._files = deque(every)

    def clear(self) -> None:
        """Remove all files. The positions stay."""
        self._files.clear()

    def next_window(self, reach: int) -> ReadWindow | None:
        """The next window of at most `reach` offsets; None if everything was read."""
        while self._files and not self._find_reach(self._files[0]):
            self._files.popleft()
        if not self._files:
            return None
        limits = self._gather_ends(reach)
        highest: dict[str, int] = {}
        for partition, end in limits.items():
            highest[partition.topic] = max(end, highest.get(partition.topic, end))
        pairs = []
        for file in self._files:
            is_below = file.topic in highest and (file.offsets is None or file.offsets[0] < highest[file.topic])
            if is_below and not self._is_outside(file):
                ranges = self._ranges.read_ranges(file)
                if _has_overlap(file, ranges, self.next, limits):
                    pairs.append((file, ranges))
        # Holes before the first record do not count.
        firsts = {p: min(r[p.partition][0] for f, r in pairs if f.topic == p.topic and p.partition in r) for p in limits}
        ends = _share_reach({p: max(self.next[p], first) for p, first in firsts.items()}, limits, reach)
        starts = {partition: self.next[partition] for partition in ends}
        files = [file for file, ranges in pairs if _has_overlap(file, ranges, starts, ends)]
        return ReadWindow(Span(Position(starts), Position(ends)), tuple(files))

    def mark_done(self, window: ReadWindow) -> None:
        """Mark the records of `window` as read."""
        self.next.update(window.span.end)

    def _find_reach(self, file: LogFile) -> dict[TopicPartition, int]:
        """The ends up to which records of `file` are to be read."""
        if self._is_outside(file):
            return {}
        ends = {}
        for number, (first, last) in self._ranges.read_ranges(file).items():
            partition = TopicPartition(file.topic, number)
            end = last + 1 if self._until is None else min(last + 1, self._until.get(partition, 0))
            if partition in self.next and max(first, self.next[partition]) < end:
                ends[partition] = end
        return ends

    def _is_outside(self, file: LogFile) -> bool:
        """True if statistics show that no record of `file` is to be read."""
        if file.offsets is None or file.partitions is None:
            return False
        (first, last), (low, high) = file.offsets, file.partitions
        partitions = (TopicPartition(file.topic, number) for number in range(low, high + 1))
        unread = [partition for partition in partitions if partition in self.next and self.next[partition] <= last]
        return not unread if self._until is None else all(first >= self._until.get(partition, 0) for partition in unread)

    def _gather_ends(self, reach: int) -> dict[TopicPartition, int]:
        """The ends for the records of the first files, for as many files as needed for `reach` offsets."""
        ends: dict[TopicPartition, int] = {}
        begins: dict[TopicPartition, int] = {}
        for file in self._files:
            for partition, end in self._find_reach(file).items():
                first = max(self.next[partition], self._ranges.read_ranges(file)[partition.partition][0])
                begins[partition] = min(first, begins.get(partition, first))
                ends[partition] = max(end, ends.get(partition, end))
            if sum(ends.values()) - sum(begins.values()) >= reach:
                break
        return ends


def _has_overlap(
    file: LogFile,
    ranges: Mapping[int, Range],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> bool:
    partitions = ((TopicPartition(file.topic, number), offsets) for number, offsets in ranges.items())
    return any(p in ends and first < ends[p] and last >= starts[p] for p, (first, last) in partitions)


def _share_reach(
    begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], reach: int
) -> dict[TopicPartition, int]:
    """Ends with at most `reach` offsets above `begins`, divided among the partitions in proportion."""
    widths = {partition: end - begins[partition] for partition, end in ends.items()}
    total = sum(widths.values())
    if total <= reach:
        return dict(ends)
    out, rest = {}, reach
    for partition, width in sorted(widths.items()):
        share = min(rest, max(1, width * reach // total))
        if share:
            out[partition] = begins[partition] + share
            rest -= share
    return out


# Reading of an event log, version after version.

Load = Callable[[LogSnapshot, ReadWindow, WindowSize], Batch[F]]
"""Reads the records of a window. May raise WindowTooLarge and FileRewritten."""


NOTHING = LogSnapshot("", -1, (), Position())
"""The snapshot before the first refresh."""


class DeltaLogReader(Generic[F]):
    """A pass through the log, from `start`, and up to `until` if given. With `ahead`, the next batch is read in another
    thread while the caller uses the last one. After an error or a stop, more was read than delivered, so the reader must
    not be used again."""

    def __init__(
        self,
        log: DeltaLog,
        load: Load[F],
        pace: WindowSize,
        start: Mapping[TopicPartition, int],
        until: Position | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        self._log, self._load, self._pace = log, load, pace
        self._until = until
        self._ahead = ahead
        self._backlog = Backlog(log.ranges, start, until)
        self._snapshot = NOTHING
        self._bounds = LogBounds(Position(), Position())
        self._table = ""
        self._emptied: set[TopicPartition] = set()

    def refresh(self) -> None:
        """Add the newest version. Raises DataLoss if the next records were removed, or some were appended below
        others, or the table was replaced."""
        snapshot, bounds = self._log.read_latest()
        if snapshot is self._snapshot:
            return
        if self._table and snapshot.table != self._table:
            # It has other records with the same offsets.
            raise recreated_error(self._log.root)
        self._table = snapshot.table
        before = set(self._snapshot.files)
        fresh = [file for file in snapshot.files if file not in before]
        appended = self._snapshot is not NOTHING and before <= set(snapshot.files)
        if appended:
            self._refuse_late(fresh)
        # Records that were appended to existing ones cannot be missing. A log that was emptied and loaded again may begin
        # later.
        firsts = {p: first for p, first in bounds.firsts.items() if not appended or p in self._emptied}
        starts = {p: self._backlog.next.get(p, first) for p, first in firsts.items()}
        refuse_losses({p: s for p, first in firsts.items() if (s := describe_removed(p, starts[p], first))}, ACCEPT)
        self._emptied = (self._emptied | set(self._bounds.firsts)) - set(bounds.firsts)
        for partition, first in bounds.firsts.items():
            if self._until is None or partition in self._until:
                self._backlog.next.setdefault(partition, first)
        self._backlog.add(fresh)
        self._snapshot, self._bounds = snapshot, bounds
        self._log.ranges.keep_only(snapshot.files)

    def _refuse_late(self, fresh: Iterable[LogFile]) -> None:
        """Raise DataLoss for appended records below the log's end. Only rewritten files may have them."""
        for file in fresh:
            for number, (first, _) in self._log.ranges.read_ranges(file).items():
                partition = TopicPartition(file.topic, number)
                end = self._bounds.ends.get(partition, first)
                if first < end:
                    raise DataLoss(
                        f"Record {first} of {partition} was appended to the event log after record {end - 1}.",
                        next_step="Two writers share this table. Give each log a folder of its own, and reload with "
                        "`replicator lanes resync LANE`.",
                    )

    def deliver(self, consume_batch: ConsumeBatch[F], stop: Stop) -> bool:
        """Deliver everything new. Returns True if there was anything."""
        has_new, batches = False, self._read_batches()
        try:
            while not stop.is_set():
                try:
                    batch = next(batches, None)
                except FileRewritten as error:
                    self._log.refuse_missing(error)
                    # A newer version has other files.
                    self._backlog.clear()
                    self._snapshot = NOTHING
                    self.refresh()
                    batches = self._read_batches()
                    continue
                if batch is None:
                    break
                has_new = True
                consume_batch(batch)
        finally:
            batches.close()
        return has_new

    def _read_batches(self) -> Generator[Batch[F], None, None]:
        return read_ahead(self._next_batch) if self._ahead else iterate(self._next_batch)

    def _next_batch(self) -> Batch[F] | None:
        """The next batch; None at the end. Raises FileRewritten."""
        while True:
            try:
                window = self._backlog.next_window(self._pace.reach)
                if window is None:
                    break
                batch = self._load(self._snapshot, window, self._pace)
                self._pace.grow(batch.records, batch.size)
                self._backlog.mark_done(window)
                return batch
            except WindowTooLarge:
                continue
        # Trailing offsets without records, which the writing lanes have passed or which were requested.
        ends = self._until or self._bounds.ends
        final_ends = {partition: end for partition, end in ends.items() if self._backlog.next.get(partition, end) < end}
        if not final_ends:
            return None
        starts = {partition: self._backlog.next[partition] for partition in final_ends}
        self._backlog.next.update(final_ends)
        rest = ReadWindow(Span(Position(starts), Position(final_ends)), ())
        return self._load(self._snapshot, rest, self._pace)
