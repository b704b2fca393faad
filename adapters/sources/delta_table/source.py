"""The source for rows of a Delta table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Generic

import pyarrow as pa

from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, DataLoss
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.remedies import describe_reload_or_skip
from replicator.ports.frames import Batch, F, Stop

from ...event_log.frames import payload_bytes
from ..delta_reader.window_size import WholeTableSize, WindowSize
from ..event_log.version_loop import follow_versions
from .data_loss_check import other_table_error
from .offsets import first_change_offset, first_whole_offset, skip_whole, start_offset
from .options import RowsOptions
from .splits import read_records
from .table import RowsTable
from .version_reader import ApplyBatch, RowVersionReader, RowWindow, describe_loss


class TableRows(ABC, Generic[F]):
    """A `Source` over a Delta table (`replicator.ports.source` is the contract), without `load`, which reads the rows of
    a window as a frame.

    Its one topic has the name of the table. For offsets see `offsets`: they are the same for every reader, and have
    holes. A table with another id is another stream (`Batch.identity`).
    """

    has_sparse_offsets = True

    def __init__(self, options: RowsOptions, path: str) -> None:
        self._options = options
        self._table = RowsTable(options, path)
        self._main: RowVersionReader[F] | None = None

    @abstractmethod
    def load(self, window: RowWindow, pace: WindowSize) -> Batch[F]:
        """The records of `window`. May raise WindowTooLarge and FileRewritten."""

    @abstractmethod
    def empty_batch(self, span: Span) -> Batch[F]:
        """A batch without records."""

    def to_span(self, window: RowWindow) -> Span:
        """The span of `window`."""
        return Span(self._to_position(window.start), self._to_position(window.end))

    def run(self, start: Position, apply_batch: ApplyBatch[F], stop: Stop, *, once: bool) -> None:
        """See the port. With `once`, up to the version that is newest at the start."""
        at = Position({**self.start(), **start})
        self._refuse_losses(self.losses(at, {}))
        self._main = RowVersionReader(self._table, self.load, self._window_size(), at[self._partition])
        follow_versions(
            _HookedReader(self._main, self.before_refresh), start, self.empty_batch, apply_batch, stop, once=once
        )

    def before_refresh(self) -> None:
        """A hook before each search for the newest version: sources that write the table themselves do so here."""

    def read(self, start: Position, until: Position, apply_batch: ApplyBatch[F], stop: Stop) -> None:
        """See the port. Opens only files with rows in the requested range."""
        asked = start.only(until)
        self._refuse_losses({**self.losses(until, {}), **self.losses(asked, {})})
        if self._partition not in until or asked.get(self._partition, -1) >= until[self._partition]:
            return
        following = RowVersionReader(
            self._table, self.load, self._window_size(), asked[self._partition], until[self._partition]
        )
        following.refresh()
        following.deliver(apply_batch, stop)

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        found = {place: self._describe_loss(place, offset) for place, offset in position.items()}
        known = identity.get(self._table.name)
        if self._partition in found and known not in (None, self._table.read_identity()):
            found[self._partition] = other_table_error(self._table.name).sentence
        return {place: sentence for place, sentence in found.items() if sentence}

    def start(self) -> Position:
        """See the port: the table as it is now, or the changes after it. For a running stream, the table as of the
        stream's position: a lane that begins above it would join before its rows were read."""
        newest = self._table.find_newest()
        if self._options.start_from == "latest":
            return self._to_position(first_change_offset(newest + 1))
        return self._to_position(first_whole_offset(newest) if self._main is None else start_offset(self._main.next))

    def after_snapshots(self, position: Position) -> Position:
        return Position({place: skip_whole(offset) for place, offset in position.items()})

    def beginning(self) -> Position:
        """See the port: the first version after which no commit is missing."""
        return self._to_position(first_change_offset(self._table.find_oldest()))

    def end(self) -> Position:
        return self._to_position(first_change_offset(self._table.find_newest() + 1))

    def committed(self, position: Position) -> None:
        """Does nothing: positions are not published."""

    def close(self) -> None:
        """Does nothing: nothing stays open between calls."""

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

    def _describe_loss(self, place: TopicPartition, offset: int) -> str:
        if place == self._partition:
            return describe_loss(self._table, offset)
        return f"The source reads the table {self._table.name}, which has no {place}." if offset else ""

    @staticmethod
    def _refuse_losses(found: Mapping[TopicPartition, str]) -> None:
        if found:
            raise DataLoss(" ".join(sorted(set(found.values()))), next_step=describe_reload_or_skip())


class _HookedReader(Generic[F]):
    """A reader that runs a hook before each search for new versions."""

    def __init__(self, main: RowVersionReader[F], look: Callable[[], None]) -> None:
        self._main, self._look, self.deliver = main, look, main.deliver

    def refresh(self) -> None:
        self._look()
        self._main.refresh()


class LocalTableRows(TableRows[pa.Table]):
    """`TableRows` with `pyarrow.Table` as frames."""

    def load(self, window: RowWindow, pace: WindowSize) -> Batch[pa.Table]:
        """Reads in this process, file by file in small slices."""
        frame = pa.concat_tables([RAW.empty_table(), *self._read_some(window, pace)])
        return Batch(frame, self.to_span(window), frame.num_rows, payload_bytes(frame), self.identity())

    def empty_batch(self, span: Span) -> Batch[pa.Table]:
        """A batch without records."""
        return Batch(RAW.empty_table(), span, 0, 0, self.identity())

    def _read_some(self, window: RowWindow, pace: WindowSize) -> Iterable[pa.Table]:
        count = size = 0
        for piece in window.pieces:
            for some in read_records(piece):
                count, size = count + some.num_rows, size + payload_bytes(some)
                pace.refuse_more(count, size)
                yield some


class RowsSource(LocalTableRows):
    """`TableRows` of the folder in the options."""

    def __init__(self, options: Mapping[str, object]) -> None:
        read = RowsOptions.read(options)
        if read.path is None:
            raise ConfigProblem(
                f"The table {read.table} is in a catalog of Spark, which the local engine does not know.",
                next_step="Give the folder of the table as 'path', or run with `engine: spark`.",
            )
        super().__init__(read, read.path)
