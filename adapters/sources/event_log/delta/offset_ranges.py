"""Which offsets the files of an event log hold."""

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
    """Per file and partition the first and last offset. From the table's statistics where a file is of one partition;
    otherwise from the file's two columns of places, read once. `read_ranges` is safe for use from several threads."""

    def __init__(self) -> None:
        self._known: dict[FileLocation, Mapping[int, Range]] = {}

    def read_ranges(self, file: LogFile) -> Mapping[int, Range]:
        """The ranges of `file` by partition. Raises Rewritten when it is gone."""
        known = self._known.get(file.path)
        if known is None:
            known = self._known[file.path] = _read_ranges(file)
        return known

    def keep_only(self, files: Iterable[LogFile]) -> None:
        """Keep only what is known of `files`."""
        paths = {file.path for file in files}
        self._known = {path: known for path, known in self._known.items() if path in paths}

    def find_bounds(self, snapshot: LogSnapshot) -> LogBounds:
        """Where the log begins and ends. Of the files in between none is opened."""
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
        # Files without statistics first: nothing can be left out for them.
        for file in sorted(files, key=lambda f: (0, 0) if f.offsets is None else (1, sign * f.offsets[side])):
            if not _can_skip(file, side, sign, found):
                for number, offsets in self.read_ranges(file).items():
                    place = TopicPartition(file.topic, number)
                    found[place] = sign * min(sign * offsets[side], sign * found.get(place, offsets[side]))
        return found


def _can_skip(file: LogFile, side: int, sign: int, found: Mapping[TopicPartition, int]) -> bool:
    """True when statistics say that no partition of the file goes beyond what was found."""
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
