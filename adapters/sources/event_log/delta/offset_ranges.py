"""Offset ranges of the files of an event log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from replicator.domain.position import Position, TopicPartition

from ....delta.folders import FileLocation
from ....event_log.bounds import LogBounds
from ...delta_reader.data_files import open_parquet
from .table import LogFile, LogSnapshot

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
