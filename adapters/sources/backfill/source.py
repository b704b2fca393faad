"""What backfills wrote down, for the lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import Retryable
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.backfill import TOPICS
from replicator.ports.frames import Batch, Stop

from .journal import Piece, pieces_in, tables_in, topic_of

ApplyBatch = Callable[[Batch[pa.Table]], None]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class JournalSource:
    """`ports.backfill.Journal` over `pyarrow.Table`. Options: `state`, the folder in which the tables have folders of their
    own; `batch_bytes`, about how many bytes of keys and values one batch has at most."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self._folder = Path(str(options["state"]))
        self._batch_bytes = int(str(options["batch_bytes"]))
        self._micros: dict[Path, int] = {}

    def owns(self, topic: str) -> bool:
        """See `Journal`."""
        return topic.startswith(TOPICS)

    def beginning(self) -> Position:
        """See `Journal`."""
        return Position({topic_of(table): pieces[0].first for table, pieces in self._pieces()})

    def end(self) -> Position:
        """See `Journal`."""
        return Position({topic_of(table): pieces[-1].end for table, pieces in self._pieces()})

    def moment(self) -> datetime | None:
        """See `Journal`. A file never changes, so each is asked once."""
        pieces = [piece for _, found in self._pieces() for piece in found]
        known = self._micros
        self._micros = {p.path: known[p.path] if p.path in known else _micros(p) for p in pieces}
        newest = max(self._micros.values(), default=0)
        return EPOCH + timedelta(microseconds=newest) if newest else None

    def _pieces(self) -> Iterator[tuple[str, list[Piece]]]:
        for table in tables_in(self._folder):
            pieces = self._of(topic_of(table))
            if pieces:
                yield table, pieces

    def _of(self, place: TopicPartition) -> list[Piece]:
        return list(pieces_in(self._folder / quote(place.topic.removeprefix(TOPICS), safe="")))

    def read(self, start: Position, until: Position, apply_batch: ApplyBatch, stop: Stop) -> None:
        """See `Journal`."""
        for place, end in until.items():
            at = start.get(place, 0)
            for piece in self._of(place):
                if piece.end > at and piece.first < end:
                    at = self._give(piece, place, (at, min(end, piece.end)), apply_batch, stop)
                if stop.is_set():
                    return

    def _give(
        self, piece: Piece, place: TopicPartition, within: tuple[int, int], apply_batch: ApplyBatch, stop: Stop
    ) -> int:
        """Hand over the records `within`, the first span beginning there; up to where it was done."""
        at, end = within
        for frame, size in self._cut(_records(piece, within)):
            last = frame["offset"][-1].as_py() + 1
            span = Span(Position({place: at}), Position({place: last}))
            apply_batch(Batch(frame, span, frame.num_rows, size))
            at = last
            if stop.is_set():
                break
        return at if stop.is_set() else max(at, end)

    def _cut(self, frame: pa.Table) -> Iterator[tuple[pa.Table, int]]:
        """The frame in parts of about `batch_bytes`, each with its size."""
        sizes = pc.add(_lengths(frame["key"]), _lengths(frame["value"]))
        total = pc.sum(sizes).as_py() or 0
        rows = max(1, frame.num_rows * self._batch_bytes // max(1, total))
        for first in range(0, frame.num_rows, rows):
            yield frame.slice(first, rows), pc.sum(sizes.slice(first, rows)).as_py()


def _records(piece: Piece, within: tuple[int, int]) -> pa.Table:
    try:
        frame = piece.records()
    except FileNotFoundError:
        raise Retryable(f"{piece.path} was removed while it was read") from None
    first, end = within
    wanted = pc.and_(pc.greater_equal(frame["offset"], first), pc.less(frame["offset"], end))
    return frame.filter(wanted)


def _micros(piece: Piece) -> int:
    """When its rows were read; 0 for one that was removed meanwhile, because a newer snapshot is there."""
    try:
        return int(piece.said().get("micros", 0))
    except FileNotFoundError:
        return 0


def _lengths(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.binary_length(values), 0)
