"""The source that reads the rows of a Delta table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Generic

import pyarrow as pa

from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, DataLoss
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.remedies import reload_or_skip
from replicator.ports.frames import Batch, F, Stop

from ....event_logs.frames import payload
from ....event_logs.live import follow
from ..pace import AllAtOnce, Pace
from .following import ApplyBatch, Following, Window, lost
from .losses import another
from .options import RowsOptions
from .pieces import records
from .places import after_whole, begun_at, changes_of, whole_of
from .table import RowsTable


class RowsOfTable(ABC, Generic[F]):
    """A `Source` over a Delta table (`replicator.ports.source` is the contract), but for how the rows of a window become a
    frame (`load`).

    Its one topic is called as the table. Offsets are those of `places`: they are the same for every reader, and they have
    holes. A table of another id is another stream (`Batch.identity`).
    """

    has_sparse_offsets = True

    def __init__(self, options: RowsOptions, path: str) -> None:
        self._options = options
        self._table = RowsTable(options, path)
        self._main: Following[F] | None = None

    @abstractmethod
    def load(self, window: Window, pace: Pace) -> Batch[F]:
        """The records of `window`. May raise TooMuch and Rewritten."""

    @abstractmethod
    def nothing(self, span: Span) -> Batch[F]:
        """A batch without records."""

    def span(self, window: Window) -> Span:
        """What `window` covers."""
        return Span(self._at(window.start), self._at(window.end))

    def run(self, start: Position, apply_batch: ApplyBatch[F], stop: Stop, *, once: bool) -> None:
        """As the port says; with `once` up to the newest version as it is now."""
        at = Position({**self.start(), **start})
        self._refuse(self.losses(at, {}))
        self._main = Following(self._table, self.load, self._pace(), at[self._place])
        follow(_Looking(self._main, self.look), start, self.nothing, apply_batch, stop, once=once)

    def look(self) -> None:
        """Called before the newest version is looked for: who writes the table himself does so."""

    def read(self, start: Position, until: Position, apply_batch: ApplyBatch[F], stop: Stop) -> None:
        """As the port says. Only files that reach into what is asked for are opened."""
        asked = start.only(until)
        self._refuse({**self.losses(until, {}), **self.losses(asked, {})})
        if self._place not in until or asked.get(self._place, -1) >= until[self._place]:
            return
        following = Following(self._table, self.load, self._pace(), asked[self._place], until[self._place])
        following.refresh()
        following.deliver(apply_batch, stop)

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        """As the port says."""
        found = {place: self._lost(place, offset) for place, offset in position.items()}
        known = identity.get(self._table.name)
        if self._place in found and known not in (None, self._table.identity()):
            found[self._place] = another(self._table.name).sentence
        return {place: sentence for place, sentence in found.items() if sentence}

    def start(self) -> Position:
        """As the port says: the table as it is now, or what is changed from now on. Of a stream that runs, the table as it
        is where that stands: what begins above it would join before its rows are read."""
        newest = self._table.newest()
        if self._options.start_from == "latest":
            return self._at(changes_of(newest + 1))
        return self._at(whole_of(newest) if self._main is None else begun_at(self._main.next))

    def after_snapshots(self, position: Position) -> Position:
        """See `ports.source.HasSnapshots`."""
        return Position({place: after_whole(offset) for place, offset in position.items()})

    def beginning(self) -> Position:
        """As the port says: the first version from which on every change is known."""
        return self._at(changes_of(self._table.oldest()))

    def end(self) -> Position:
        """As the port says."""
        return self._at(changes_of(self._table.newest() + 1))

    def committed(self, position: Position) -> None:
        """Nothing to publish: nobody else asks how far a table was read."""

    def close(self) -> None:
        """Nothing is kept open between calls."""

    def identity(self) -> Mapping[str, str]:
        """The id of the table, for `Batch.identity`."""
        return {self._table.name: self._table.identity()}

    @property
    def _place(self) -> TopicPartition:
        return TopicPartition(self._table.name, 0)

    def _at(self, offset: int) -> Position:
        return Position({self._place: offset})

    def _pace(self) -> Pace:
        if self._options.mode == "batch":
            return AllAtOnce(self._table.name, self._options.batch_bytes)
        return Pace(self._options.batch_records, self._options.batch_bytes)

    def _lost(self, place: TopicPartition, offset: int) -> str:
        if place == self._place:
            return lost(self._table, offset)
        return f"The source reads the table {self._table.name}, which has no {place}." if offset else ""

    @staticmethod
    def _refuse(found: Mapping[TopicPartition, str]) -> None:
        if found:
            raise DataLoss(" ".join(sorted(set(found.values()))), next_step=reload_or_skip())


class _Looking(Generic[F]):
    """`Versions` of a stream, before whose every look something else is done."""

    def __init__(self, main: Following[F], look: Callable[[], None]) -> None:
        self._main, self._look, self.deliver = main, look, main.deliver

    def refresh(self) -> None:
        """See `Versions`."""
        self._look()
        self._main.refresh()


class RowsInProcess(RowsOfTable[pa.Table]):
    """`RowsOfTable` whose frames are `pyarrow.Table`."""

    def load(self, window: Window, pace: Pace) -> Batch[pa.Table]:
        """Read in this process, file by file and a little at a time."""
        frame = pa.concat_tables([RAW.empty_table(), *self._some(window, pace)])
        return Batch(frame, self.span(window), frame.num_rows, payload(frame), self.identity())

    def nothing(self, span: Span) -> Batch[pa.Table]:
        """A batch without records."""
        return Batch(RAW.empty_table(), span, 0, 0, self.identity())

    def _some(self, window: Window, pace: Pace) -> Iterable[pa.Table]:
        count = size = 0
        for piece in window.pieces:
            for some in records(piece):
                count, size = count + some.num_rows, size + payload(some)
                pace.refuse_more(count, size)
                yield some


class RowsSource(RowsInProcess):
    """`RowsOfTable` in the folder that the options name."""

    def __init__(self, options: Mapping[str, object]) -> None:
        read = RowsOptions.read(options)
        if read.path is None:
            raise ConfigProblem(
                f"The table {read.table} is in a catalog of Spark, which the local engine does not know.",
                next_step="Give the folder of the table as 'path', or run with `engine: spark`.",
            )
        super().__init__(read, read.path)
