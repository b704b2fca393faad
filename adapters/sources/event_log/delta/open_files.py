"""Files that span several windows: the next window continues in the open file instead of reading it from the start."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from math import inf

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.position import TopicPartition

from ....delta.folders import FileLocation
from ...delta_reader.data_files import open_reader, read_slices, translate_damage
from .backlog import ReadWindow
from .table import LogFile

PIECE_ROWS = 10_000
HELD_BYTES = 64 * 1024 * 1024
"""The most bytes of an unordered file that are kept for later windows. Beyond it, these read the file again."""


class OpenLogFile:
    """A file with its read position. Rows from the start of the last window are kept until a window is above them. A
    window that was too large is requested again, shorter."""

    def __init__(self, file: LogFile, stored: pa.Schema, lowest: int) -> None:
        self._file, self._stored, self._lowest = file, stored, lowest
        with translate_damage(file.path):
            self._reader = open_reader(file.path)
            groups = sorted(
                (i for i in range(self._reader.metadata.num_row_groups) if self._offset_range(i)[1] >= lowest),
                key=lambda i: self._offset_range(i)[0],
            )
            self._places = self._reader.read_row_groups(groups, columns=["partition", "offset"])
            self._batches = self._read_pieces(groups)
        self._read = 0
        self._held: list[pa.Table] = []
        self._from: dict[TopicPartition, int] = {}

    def can_continue(self, window: ReadWindow) -> bool:
        """True if all rows of the window are still available."""
        mine = (item for item in window.span.start.items() if item[0].topic == self._file.topic)
        return all(offset >= self._from.get(place, self._lowest) for place, offset in mine)

    def read_rows(self, window: ReadWindow) -> Iterator[pa.Table]:
        """The rows of the window, in small slices."""
        topic = self._file.topic
        starts = {place: offset for place, offset in window.span.start.items() if place.topic == topic}
        self._from.update(starts)
        self._held = [piece for piece in self._held if pc.any(pc.invert(_is_below(piece, starts))).as_py()]
        ends = {place: offset for place, offset in window.span.end.items() if place.topic == topic}
        for piece in self._held:
            yield _select_window(piece, starts, ends)
        last = _last_true(_is_inside(self._places, starts, ends))
        while self._read <= last:
            with translate_damage(self._file.path):
                piece = next(self._batches)
            self._held.append(piece)
            self._read += piece.num_rows
            yield _select_window(piece, starts, ends)

    def is_reusable(self, window: ReadWindow) -> bool:
        """True if later windows need rows of the file, and not too many of these are kept."""
        ends = {place: offset for place, offset in window.span.end.items() if place.topic == self._file.topic}
        if not pc.any(pc.invert(_is_below(self._places, ends))).as_py():
            return False
        later = (piece for piece in self._held if pc.any(pc.invert(_is_below(piece, ends))).as_py())
        held: int = sum(piece.nbytes for piece in later)
        return held <= HELD_BYTES

    def close(self) -> None:
        """May be called twice. Releases slices and file, because they reference each other and garbage collection is
        rare."""
        self._held = []
        self._batches.close()
        self._reader.close()

    def _offset_range(self, number: int) -> tuple[float, float]:
        """The first and last offset of a row group from its statistics. In a compacted file the newest may be first."""
        group = self._reader.metadata.row_group(number)
        columns = (group.column(i) for i in range(group.num_columns))
        known = next((c.statistics for c in columns if c.path_in_schema == "offset"), None)
        return (known.min, known.max) if known is not None and known.has_min_max else (-inf, inf)

    def _read_pieces(self, groups: list[int]) -> Generator[pa.Table, None, None]:
        names = self._stored.names
        for batch in read_slices(self._file.path, self._reader, PIECE_ROWS, names, groups):
            topic = pa.repeat(pa.scalar(self._file.topic), batch.num_rows)
            yield pa.table(batch).select(names).cast(self._stored).append_column("topic", topic)


class OpenLogFiles:
    """The open files. Files that a later window continues stay open."""

    def __init__(self, stored: pa.Schema) -> None:
        self._stored = stored
        self._open: dict[FileLocation, OpenLogFile] = {}

    def read_rows(self, file: LogFile, window: ReadWindow) -> Iterator[pa.Table]:
        """The rows of `file` in `window`, in small slices. Raises FileRewritten if it does not exist any more."""
        known = self._open.get(file.path)
        if known is None or not known.can_continue(window):
            self._close(file.path)
            lowest = min(offset for place, offset in window.span.start.items() if place.topic == file.topic)
            known = self._open[file.path] = OpenLogFile(file, self._stored, lowest)
        return known.read_rows(window)

    def mark_done(self, window: ReadWindow) -> None:
        """Close files that later windows do not need."""
        wanted = {file.path for file in window.files}
        for path in [p for p, one in self._open.items() if p not in wanted or not one.is_reusable(window)]:
            self._close(path)

    def close(self) -> None:
        """Close all files; they are opened again when needed."""
        for path in list(self._open):
            self._close(path)

    def _close(self, path: FileLocation) -> None:
        known = self._open.pop(path, None)
        if known is not None:
            known.close()


Bounds = Mapping[TopicPartition, int]
"""Offsets of some partitions of one topic."""


def _is_below(rows: pa.Table, bounds: Bounds) -> pa.ChunkedArray:
    """True for rows below the offset of their partition; False for partitions without one."""
    found = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
    for place, bound in bounds.items():
        found = pc.or_(found, pc.and_(pc.equal(rows["partition"], place.partition), pc.less(rows["offset"], bound)))
    return found


def _is_inside(rows: pa.Table, starts: Bounds, ends: Bounds) -> pa.ChunkedArray:
    return pc.and_(_is_below(rows, ends), pc.invert(_is_below(rows, starts)))


def _last_true(mask: pa.ChunkedArray) -> int:
    """The index of the last true value, -1 without one."""
    found = pc.indices_nonzero(mask)
    return int(found[-1].as_py()) if len(found) else -1


def _select_window(piece: pa.Table, starts: Bounds, ends: Bounds) -> pa.Table:
    """The rows of a window. Copies only if they are not consecutive, as in a log of several writers."""
    found = pc.indices_nonzero(_is_inside(piece, starts, ends))
    if not len(found):
        return piece.slice(0, 0)
    first, last = found[0].as_py(), found[-1].as_py()
    return piece.slice(first, len(found)) if last - first + 1 == len(found) else piece.take(found)
