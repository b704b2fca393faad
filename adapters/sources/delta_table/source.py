"""The source for rows of a Delta table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from replicator.domain.errors import DataLoss, EnvironmentProblem, ReplicatorError, refuse_losses
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Batch, ConsumeBatch, Stop
from replicator.ports.source import SourceFeatures

from ..delta_options import DeltaSourceSettings
from ..delta_reader import FileRewritten, WholeTableSize, WindowSize, WindowTooLarge
from ..event_log.source import follow_versions
from ..scan import Scan, open_scan
from .splits import RowSplit, first_change_offset, first_whole_offset, parse_offset, read_records, skip_whole, start_offset
from .table import RowsTable, RowVersion, TableState, other_table_error, vacuumed_error


class TableRows:
    """A `Source` over a Delta table (`replicator.ports.source` is the contract), with the frames of `scan`.

    Its one topic has the name of the table. For offsets see `splits`: they are the same for every reader, and have
    holes. A table with another id is another stream (`Batch.identity`).

    This process reads the table's log, and footers of change data files. The engine opens the files and builds the
    records, so Spark's executors need access to the folder.
    """

    def __init__(self, options: DeltaSourceSettings, path: str, scan: Scan) -> None:
        self._options, self._scan = options, scan
        self._table = RowsTable(options, path)
        self._main: RowVersionReader | None = None

    @property
    def features(self) -> SourceFeatures:
        return SourceFeatures(sparse_offsets=True, after_snapshots=self.after_snapshots)

    def run(self, start: Position, consume_batch: ConsumeBatch[Any], stop: Stop, *, once: bool) -> None:
        """See the port. With `once`, up to the version that is newest at the start."""
        at = Position({**self.start(), **start})
        refuse_losses(self.losses(at, {}))
        self._main = RowVersionReader(self._table, self._load, self._window_size(), at[self._partition])
        self._main.before_refresh = self.before_refresh
        follow_versions(self._main, start, self._empty_batch, consume_batch, stop, once=once)

    def before_refresh(self) -> None:
        """A hook before each search for the newest version: sources that write the table themselves do so here."""

    def read(self, start: Position, until: Position, consume_batch: ConsumeBatch[Any], stop: Stop) -> None:
        """See the port. Opens only files with rows in the requested range."""
        requested = start.only(until)
        refuse_losses({**self.losses(until, {}), **self.losses(requested, {})})
        if self._partition not in until or requested.get(self._partition, -1) >= until[self._partition]:
            return
        following = RowVersionReader(
            self._table, self._load, self._window_size(), requested[self._partition], until[self._partition]
        )
        following.refresh()
        following.deliver(consume_batch, stop)

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        losses = {}
        table_id = identity.get(self._table.name)
        for partition, offset in position.items():
            if partition != self._partition:
                sentence = f"The source reads the table {self._table.name}, which has no {partition}." if offset else ""
            elif table_id not in (None, self._table.read_identity()):
                sentence = other_table_error(self._table.name).sentence
            else:
                sentence = describe_loss(self._table, offset)
            if sentence:
                losses[partition] = sentence
        return losses

    def start(self) -> Position:
        """See the port: the table as it is now, or the changes after it. For a running stream, the table as of the
        stream's position: a lane that begins above it would join before its rows were read."""
        newest = self._table.find_newest()
        if self._options.start_from == "latest":
            return self._to_position(first_change_offset(newest + 1))
        return self._to_position(first_whole_offset(newest) if self._main is None else start_offset(self._main.next))

    def after_snapshots(self, position: Position) -> Position:
        return Position({partition: skip_whole(offset) for partition, offset in position.items()})

    def beginning(self) -> Position:
        """See the port: the first version after which no commit is missing."""
        return self._to_position(first_change_offset(self._table.find_oldest()))

    def end(self) -> Position:
        return self._to_position(first_change_offset(self._table.find_newest() + 1))

    def committed(self, position: Position) -> None:
        """Does nothing: positions are not published."""

    def close(self) -> None:
        """Does nothing: nothing stays open between calls."""

    def _load(self, window: RowWindow, pace: WindowSize) -> Batch[Any]:
        """The records of `window`. May raise WindowTooLarge and FileRewritten."""
        span = Span(self._to_position(window.start), self._to_position(window.end))
        if not window.pieces:
            return self._empty_batch(span)
        splits = [split for piece in window.pieces for split in piece.split(self._scan.split_rows)]
        doing = f"reading the table {self._table.root}"
        try:
            frame, records, size = self._scan.read(splits, read_records, doing, pace.refuse_more)
        except ReplicatorError:
            window.refuse_missing(self._table.name)
            raise
        return Batch(frame, span, records, size, self.identity())

    def _empty_batch(self, span: Span) -> Batch[Any]:
        return Batch(self._scan.empty, span, 0, 0, self.identity())

    def identity(self) -> Mapping[str, str]:
        """The id of the table, for `Batch.identity`."""
        return {self._table.name: self._table.read_identity()}

    @property
    def _partition(self) -> TopicPartition:
        return TopicPartition(self._table.name, 0)

    def _to_position(self, offset: int) -> Position:
        return Position({self._partition: offset})

    def _window_size(self) -> WindowSize:
        if self._options.mode == "batch":
            return WholeTableSize(self._table.name, self._options.batch_bytes)
        return WindowSize(self._options.batch_records, self._options.batch_bytes)


class RowsSource(TableRows):
    """`TableRows` of the table in the options; its options, and those of the engine."""

    def __init__(self, options: DeltaSourceSettings | Mapping[str, Any]) -> None:
        own, scan = open_scan(options)
        read = DeltaSourceSettings.read(own)
        super().__init__(read, read.path or scan.find_folder(read.table or ""), scan)


# Reading of a table's rows, version after version.


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


Load = Callable[[RowWindow, WindowSize], Batch[Any]]
"""Reads the records of a window. May raise WindowTooLarge and FileRewritten."""


class RowVersionReader:
    """A pass through the versions, from the offset `start`, and up to `until` if given. `before_refresh`: called before
    each search for new versions."""

    before_refresh: Callable[[], None] | None = None

    def __init__(self, table: RowsTable, load: Load, pace: WindowSize, start: int, until: int | None = None) -> None:
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
        if self.before_refresh is not None:
            self.before_refresh()
        if self._table.read_identity() != self._id:
            raise other_table_error(self._table.name)
        end = first_change_offset(self._table.find_newest() + 1)
        self._end = end if self._until is None else min(self._until, end)

    def deliver(self, consume_batch: ConsumeBatch[Any], stop: Stop) -> bool:
        """Deliver everything new. Returns True if there was anything."""
        has_new = False
        while not stop.is_set() and self._next < self._end:
            window = self._next_window(self._pace.reach)
            try:
                batch = self._load(window, self._pace)
            except WindowTooLarge:
                continue
            except FileRewritten as error:
                window.refuse_missing(self._table.name)
                raise EnvironmentProblem(f"The file {error.path} was gone, and is there again.") from error
            self._pace.grow(batch.records, batch.size)
            self._next, has_new = window.end, True
            consume_batch(batch)
        return has_new

    def _next_window(self, reach: int) -> RowWindow:
        """The next window of at most `reach` rows. Lost rows raise an error only if no rows precede them."""
        at, pieces, rest = self._next, [], reach
        while at < self._end and rest > 0:
            try:
                version = self._read_version(at)
            except DataLoss:
                if at == self._next:
                    raise
                break
            row, after = parse_offset(at).row, first_change_offset(version.content.version + 1)
            end, total = parse_offset(self._end), sum(file.rows for file in version.files)
            is_last = (end.version, end.whole) == (version.content.version, version.content.whole)
            last = min(end.row, total) if is_last else total
            for file in version.files:
                begin, stop = max(row - file.first, 0), min(file.rows, last - file.first, row + rest - file.first)
                if begin < stop:
                    pieces.append(RowSplit(version.content, file, begin, stop))
            count = max(0, min(rest, last - row))
            rest -= count
            at = at + count if row + count < last else min(after, self._end)
        return RowWindow(self._next, at, tuple(pieces))

    def _read_version(self, at: int) -> RowVersion:
        number, whole, _ = parse_offset(at)
        if self._version is not None and self._version[:2] == (number, whole):
            return self._version[2]
        if whole:
            version = self._table.read_whole(number)
        else:
            commit = self._table.read_commit(number)
            if self._state is None or self._state[0] != number - 1:
                state = self._table.read_state(number)
            else:
                state = self._state[1].apply_commit(commit, self._table.root)
            if state.table != self._id:
                raise other_table_error(self._table.name)
            version = self._table.read_changes(commit, state)
            self._state = (number, state)
        self._version = (number, whole, version)
        return version


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
