"""Reading on in the rows of a table, version after version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from replicator.domain.errors import DataLoss, EnvironmentProblem
from replicator.ports.frames import Batch, F, Stop

from ..files import Rewritten
from ..pace import Pace, TooMuch
from .commits import State
from .losses import another, vacuumed
from .pieces import Piece
from .places import changes_of, place_of
from .table import RowsTable, Version

ApplyBatch = Callable[[Batch[F]], None]


@dataclass(frozen=True)
class Window:
    """The offsets [start, end), and the pieces of files with all their rows, in order."""

    start: int
    end: int
    pieces: tuple[Piece, ...] = ()

    def refuse_missing(self, name: str) -> None:
        """Raise DataLoss when one of its files is gone."""
        for piece in self.pieces:
            if not piece.file.path.exists():
                raise vacuumed(name, piece.content.version, str(piece.file.path))


Load = Callable[[Window, Pace], Batch[F]]
"""Reads the records of a window. May raise TooMuch and Rewritten."""


class Following(Generic[F]):
    """One way through the versions, from the offset `start` on and, where that is given, to `until`."""

    def __init__(self, table: RowsTable, load: Load[F], pace: Pace, start: int, until: int | None = None) -> None:
        self._table, self._load, self._pace = table, load, pace
        self._next, self._until = start, until
        self._id = table.identity()
        self._end = start
        self._state: tuple[int, State] | None = None
        self._version: tuple[int, bool, Version] | None = None

    @property
    def next(self) -> int:
        """The offset up to which everything was handed over."""
        return self._next

    def refresh(self) -> None:
        """Take notice of the versions there are. DataLoss when the table is another one."""
        if self._table.identity() != self._id:
            raise another(self._table.name)
        end = changes_of(self._table.newest() + 1)
        self._end = end if self._until is None else min(self._until, end)

    def deliver(self, apply_batch: ApplyBatch[F], stop: Stop) -> bool:
        """Hand over all that is there and was not handed over; whether that was anything."""
        handed = False
        while not stop.is_set() and self._next < self._end:
            window = self._window(self._pace.reach)
            try:
                batch = self._load(window, self._pace)
            except TooMuch:
                continue
            except Rewritten as gone:
                window.refuse_missing(self._table.name)
                raise EnvironmentProblem(f"The file {gone.path} was gone, and is there again.") from gone
            self._pace.read(batch.records, batch.size)
            self._next, handed = window.end, True
            apply_batch(batch)
        return handed

    def _window(self, reach: int) -> Window:
        """What comes next, of at most so many rows. What is lost stops it only when nothing comes before."""
        at, pieces, left = self._next, [], reach
        while at < self._end and left > 0:
            try:
                version = self._of(at)
            except DataLoss:
                if at == self._next:
                    raise
                break
            row, after = place_of(at).row, changes_of(version.content.version + 1)
            last = self._rows_below(self._end, version)
            for file in version.files:
                start, end = max(row - file.first, 0), min(file.rows, last - file.first, row + left - file.first)
                if start < end:
                    pieces.append(Piece(version.content, file, start, end))
            total = min(last, sum(file.rows for file in version.files))
            taken = max(0, min(left, total - row))
            left -= taken
            at = at + taken if row + taken < total else min(after, self._end)
        return Window(self._next, at, tuple(pieces))

    def _rows_below(self, end: int, version: Version) -> int:
        """How many rows of the version lie below an offset."""
        last = place_of(end)
        number, whole = version.content.version, version.content.whole
        if (last.version, last.whole) == (number, whole):
            return last.row
        return sum(file.rows for file in version.files)

    def _of(self, at: int) -> Version:
        number, whole, _ = place_of(at)
        if self._version is None or self._version[:2] != (number, whole):
            found = self._table.whole(number) if whole else self._changed(number)
            self._version = (number, whole, found)
        return self._version[2]

    def _changed(self, number: int) -> Version:
        commit = self._table.commit(number)
        if self._state is None or self._state[0] != number - 1:
            state = self._table.state(number)
        else:
            state = self._table.state_after(self._state[1], commit)
        if state.table != self._id:
            raise another(self._table.name)
        found = self._table.changed(commit, state)
        self._state = (number, state)
        return found


def lost(table: RowsTable, offset: int) -> str:
    """Why there is no going on from `offset`, or nothing."""
    number, whole, _ = place_of(offset)
    newest = table.newest()
    if offset > changes_of(newest + 1):
        return f"Offset {offset} lies above version {newest} of the table {table.name}, its newest."
    try:
        if whole:
            table.state(number)
        if number + whole <= newest and not table.has(number + whole):
            table.commit(number + whole)
    except DataLoss as problem:
        return problem.sentence
    return ""
