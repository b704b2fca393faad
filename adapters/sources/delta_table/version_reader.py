"""Reading of a table's rows, version after version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from replicator.domain.errors import DataLoss, EnvironmentProblem
from replicator.ports.frames import Batch, F, Stop

from ..delta_reader.data_files import FileRewritten
from ..delta_reader.window_size import WindowSize, WindowTooLarge
from .commits import TableState
from .data_loss_check import other_table_error, vacuumed_error
from .offsets import first_change_offset, parse_offset
from .splits import RowSplit
from .table import RowsTable, RowVersion

ApplyBatch = Callable[[Batch[F]], None]


@dataclass(frozen=True)
class RowWindow:
    """The offsets [start, end), and the file splits with all their rows, in order."""

    start: int
    end: int
    pieces: tuple[RowSplit, ...] = ()

    def refuse_missing(self, name: str) -> None:
        """Raise DataLoss if one of its files does not exist any more."""
        for piece in self.pieces:
            if not piece.file.path.exists():
                raise vacuumed_error(name, piece.content.version, str(piece.file.path))


Load = Callable[[RowWindow, WindowSize], Batch[F]]
"""Reads the records of a window. May raise WindowTooLarge and FileRewritten."""


class RowVersionReader(Generic[F]):
    """A pass through the versions, from the offset `start`, and up to `until` if given."""

    def __init__(self, table: RowsTable, load: Load[F], pace: WindowSize, start: int, until: int | None = None) -> None:
        self._table, self._load, self._pace = table, load, pace
        self._next, self._until = start, until
        self._id = table.read_identity()
        self._end = start
        self._state: tuple[int, TableState] | None = None
        self._version: tuple[int, bool, RowVersion] | None = None

    @property
    def next(self) -> int:
        """The offset up to which rows were delivered."""
        return self._next

    def refresh(self) -> None:
        """Look for new versions. Raises DataLoss if the table was replaced."""
        if self._table.read_identity() != self._id:
            raise other_table_error(self._table.name)
        end = first_change_offset(self._table.find_newest() + 1)
        self._end = end if self._until is None else min(self._until, end)

    def deliver(self, apply_batch: ApplyBatch[F], stop: Stop) -> bool:
        """Deliver everything new. Returns True if there was anything."""
        handed = False
        while not stop.is_set() and self._next < self._end:
            window = self._next_window(self._pace.reach)
            try:
                batch = self._load(window, self._pace)
            except WindowTooLarge:
                continue
            except FileRewritten as gone:
                window.refuse_missing(self._table.name)
                raise EnvironmentProblem(f"The file {gone.path} was gone, and is there again.") from gone
            self._pace.grow(batch.records, batch.size)
            self._next, handed = window.end, True
            apply_batch(batch)
        return handed

    def _next_window(self, reach: int) -> RowWindow:
        """The next window of at most `reach` rows. Lost rows raise an error only if no rows precede them."""
        at, pieces, left = self._next, [], reach
        while at < self._end and left > 0:
            try:
                version = self._read_version(at)
            except DataLoss:
                if at == self._next:
                    raise
                break
            row, after = parse_offset(at).row, first_change_offset(version.content.version + 1)
            last = self._count_rows_below(self._end, version)
            for file in version.files:
                start, end = max(row - file.first, 0), min(file.rows, last - file.first, row + left - file.first)
                if start < end:
                    pieces.append(RowSplit(version.content, file, start, end))
            total = min(last, sum(file.rows for file in version.files))
            taken = max(0, min(left, total - row))
            left -= taken
            at = at + taken if row + taken < total else min(after, self._end)
        return RowWindow(self._next, at, tuple(pieces))

    def _count_rows_below(self, end: int, version: RowVersion) -> int:
        """The number of rows in the version below an offset."""
        last = parse_offset(end)
        number, whole = version.content.version, version.content.whole
        if (last.version, last.whole) == (number, whole):
            return last.row
        return sum(file.rows for file in version.files)

    def _read_version(self, at: int) -> RowVersion:
        number, whole, _ = parse_offset(at)
        if self._version is None or self._version[:2] != (number, whole):
            found = self._table.read_whole(number) if whole else self._read_changes(number)
            self._version = (number, whole, found)
        return self._version[2]

    def _read_changes(self, number: int) -> RowVersion:
        commit = self._table.read_commit(number)
        if self._state is None or self._state[0] != number - 1:
            state = self._table.read_state(number)
        else:
            state = self._table.state_after(self._state[1], commit)
        if state.table != self._id:
            raise other_table_error(self._table.name)
        found = self._table.read_changes(commit, state)
        self._state = (number, state)
        return found


def describe_loss(table: RowsTable, offset: int) -> str:
    """The error for reading on from `offset`, or empty text."""
    number, whole, _ = parse_offset(offset)
    newest = table.find_newest()
    if offset > first_change_offset(newest + 1):
        return f"Offset {offset} lies above the newest version of the table {table.name}, which is {newest}."
    try:
        if whole:
            table.read_state(number)
        if number + whole <= newest and not table.has_version(number + whole):
            table.read_commit(number + whole)
    except DataLoss as problem:
        return problem.sentence
    return ""
