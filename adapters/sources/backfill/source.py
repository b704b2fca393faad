"""Records of backfills as a source for lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import Retryable
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Batch, Stop
from replicator.ports.source import BACKFILL_TOPICS

from ..scan import open_scan
from .journal import JournalFile, list_files, list_tables, to_topic

ApplyBatch = Callable[[Batch[Any]], None]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class JournalSource:
    """`ports.source.BackfillJournal`. Options, besides those of the engine:

    - `state`: the folder with the folders of tables.
    - `batch_bytes`: approximately the most bytes of keys and values in one batch.

    This process reads the files, which are on its machine. Spark's executors get the records of a batch in one partition.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        own, self._scan = open_scan(options)
        self._folder = Path(str(own["state"]))
        self._batch_bytes = int(str(own["batch_bytes"]))
        self._micros: dict[Path, int] = {}

    def span(self) -> Span:
        files = {to_topic(table): pieces for table, pieces in self._list_files()}
        start = Position({place: pieces[0].first for place, pieces in files.items()})
        return Span(start, Position({place: pieces[-1].end for place, pieces in files.items()}))

    def get_newest_time(self) -> datetime | None:
        """Reads each file's metadata once, because files never change."""
        pieces = [piece for _, found in self._list_files() for piece in found]
        known = self._micros
        self._micros = {p.path: known[p.path] if p.path in known else _read_micros(p) for p in pieces}
        newest = max(self._micros.values(), default=0)
        return EPOCH + timedelta(microseconds=newest) if newest else None

    def _list_files(self) -> Iterator[tuple[str, list[JournalFile]]]:
        for table in list_tables(self._folder):
            pieces = self._find_files(to_topic(table))
            if pieces:
                yield table, pieces

    def _find_files(self, place: TopicPartition) -> list[JournalFile]:
        return list(list_files(self._folder / quote(place.topic.removeprefix(BACKFILL_TOPICS), safe="")))

    def read(self, start: Position, until: Position, apply_batch: ApplyBatch, stop: Stop) -> None:
        for place, end in until.items():
            at = start.get(place, 0)
            for piece in self._find_files(place):
                if piece.end > at and piece.first < end:
                    at = self._deliver(piece, place, (at, min(end, piece.end)), apply_batch, stop)
                if stop.is_set():
                    return

    def _deliver(
        self, piece: JournalFile, place: TopicPartition, within: tuple[int, int], apply_batch: ApplyBatch, stop: Stop
    ) -> int:
        """Deliver the records `within`; the first span begins there. Returns the offset up to which it did."""
        at, end = within
        for frame, size in self._split_frame(_read_records(piece, within)):
            last = frame["offset"][-1].as_py() + 1
            span = Span(Position({place: at}), Position({place: last}))
            apply_batch(Batch(self._scan.to_frame(frame), span, frame.num_rows, size))
            at = last
            if stop.is_set():
                break
        return at if stop.is_set() else max(at, end)

    def _split_frame(self, frame: pa.Table) -> Iterator[tuple[pa.Table, int]]:
        """The frame in slices of about `batch_bytes`, each with its size."""
        sizes = pc.add(_byte_lengths(frame["key"]), _byte_lengths(frame["value"]))
        total = pc.sum(sizes).as_py() or 0
        rows = max(1, frame.num_rows * self._batch_bytes // max(1, total))
        for first in range(0, frame.num_rows, rows):
            yield frame.slice(first, rows), pc.sum(sizes.slice(first, rows)).as_py()


def _read_records(piece: JournalFile, within: tuple[int, int]) -> pa.Table:
    try:
        frame = piece.read_records()
    except FileNotFoundError:
        raise Retryable(f"{piece.path} was removed while it was read") from None
    first, end = within
    wanted = pc.and_(pc.greater_equal(frame["offset"], first), pc.less(frame["offset"], end))
    return frame.filter(wanted)


def _read_micros(piece: JournalFile) -> int:
    """The time at which its rows were read; 0 for a file that was removed meanwhile, as a newer snapshot exists."""
    try:
        return int(piece.read_notes().get("micros", 0))
    except FileNotFoundError:
        return 0


def _byte_lengths(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.binary_length(values), 0)
