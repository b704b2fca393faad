"""The promises of a source. Inherit `SourceContract`."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pytest

from replicator.domain.change import RAW
from replicator.domain.out_of_range import FIRST_MS, LAST_MS
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Batch
from replicator.ports.source import Source

from .contract import Contract

SECONDS = 60.0
"""Maximum seconds that a test waits."""
ODD_TIMES = [1_700_000_000_000, FIRST_MS - 1, 1, -(2**62), LAST_MS, LAST_MS + 1, 2**62]


class SourceStream(Protocol):
    """A stream, empty at first. The author of an adapter defines it for the source contract."""

    topic: str
    partitions: int

    def publish(self, records: pa.Table) -> None:
        """Add the records of a raw frame of `topic`. Offsets start at 0 in every partition and have no gaps."""

    def open(self) -> Source[Any]:
        """A source for the stream, by default from its start."""

    def close(self) -> None:
        """Remove the stream."""


@dataclass
class BatchRecorder:
    """Records batches, and checks that each is complete and continues the one before."""

    to_arrow: Callable[[Any], pa.Table]
    position: dict[TopicPartition, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    empties: int = 0
    identity: dict[str, str] = field(default_factory=dict)
    after_batch: Callable[[BatchRecorder], None] = lambda _: None

    def __call__(self, batch: Batch[Any]) -> None:
        frame = self.to_arrow(batch.frame)
        assert frame.schema.equals(RAW), frame.schema
        assert batch.records == frame.num_rows
        assert batch.size == sum(len(v or b"") for name in ("key", "value") for v in frame[name].to_pylist())
        assert set(batch.span.start) == set(batch.span.end)
        for p, start in batch.span.start.items():
            assert self.position.setdefault(p, start) == start, f"{p}: {start} after {self.position[p]}"
        self.position.update(batch.span.end)
        self.spans.append(batch.span)
        for row in frame.to_pylist():
            partition = TopicPartition(row["topic"], row["partition"])
            assert batch.span.start[partition] <= row["offset"] < batch.span.end[partition]
        self.empties += not batch.records
        self.rows += frame.to_pylist()
        self.identity.update(batch.identity)
        self.after_batch(self)

    def offsets(self) -> dict[int, list[int]]:
        """The offsets per partition in the order of arrival."""
        out: dict[int, list[int]] = defaultdict(list)
        for row in self.rows:
            out[row["partition"]].append(row["offset"])
        return dict(out)


class SourceContract(Contract):
    """Every promise of `ports.source.Source` as a test. Define `new_stream`, and `to_arrow` for other frames than
    `pyarrow.Table`."""

    odd_times: Sequence[int] = ODD_TIMES
    """Times of records in milliseconds, most of them outside the years 1 to 9999."""

    def new_stream(self) -> SourceStream:
        """A fresh, empty stream."""
        raise NotImplementedError

    def to_arrow(self, frame: Any) -> pa.Table:
        """A frame of the source as a `pyarrow.Table`."""
        return frame

    def list_expected(self, stream: SourceStream, start: int, end: int) -> pa.Table:
        """The expected records `start` to `end` of `stream`: as published, unless the source makes its own records
        and offsets."""
        return make_records(stream, start, end)

    def make_whole_span(self, stream: SourceStream, count: int) -> Span:
        """The span of the first `count` records."""
        return make_whole_span(stream, count)

    def list_offsets(self, stream: SourceStream, count: int) -> dict[TopicPartition, list[int]]:
        """The offsets of the first `count` records, by partition with records."""
        out: dict[TopicPartition, list[int]] = defaultdict(list)
        for row in self.list_expected(stream, 0, count).to_pylist():
            out[get_partition(row)].append(row["offset"])
        return {partition: sorted(offsets) for partition, offsets in out.items()}

    @contextmanager
    def open_stream(self, count: int = 20) -> Iterator[tuple[SourceStream, Source[Any]]]:
        """A stream of `count` records, and a source for it."""
        stream = self.new_stream()
        stream.publish(make_records(stream, 0, count))
        source = stream.open()
        try:
            yield stream, source
        finally:
            source.close()
            source.close()
            stream.close()

    def read_once(self, source: Source[Any], start: Position | None = None) -> BatchRecorder:
        """Everything from `start` to the current end of the stream."""
        reader = BatchRecorder(self.to_arrow, dict(start or Position()))
        source.run(start or Position(), reader, threading.Event(), once=True)
        return reader

    def test_spans_are_contiguous(self) -> None:
        """Per partition the first span starts at `start`, and each next one at the end of the span before.
        `BatchRecorder` checks this."""
        with self.open_stream() as (stream, source):
            reader = self.read_once(source)
            assert drop_empty(reader.position) == drop_empty(self.make_whole_span(stream, 20).end)
            later = {partition: offsets[len(offsets) // 2 :] for partition, offsets in self.list_offsets(stream, 20).items()}
            half = Position({**reader.position, **{partition: offsets[0] for partition, offsets in later.items()}})
            again = self.read_once(source, half)
            assert again.position == reader.position
            assert again.offsets() == {partition.partition: offsets for partition, offsets in later.items()}

    def test_records_are_in_offset_order(self) -> None:
        """Per partition the records are in offset order, with their key, value and headers."""
        with self.open_stream() as (stream, source):
            reader = self.read_once(source)
            assert all(offsets == sorted(offsets) for offsets in reader.offsets().values())
            sent = {get_position(row): row for row in self.list_expected(stream, 0, 20).to_pylist()}
            for row in reader.rows:
                expected = sent[get_position(row)]
                assert (row["key"], row["value"]) == (expected["key"], expected["value"])
                assert headers_to_dict(row["headers"]) == headers_to_dict(expected["headers"])

    def test_odd_times_are_null(self) -> None:
        """A time that no target can store is null. Its record is read anyway."""
        stream = self.new_stream()
        sent = make_records(stream, 0, len(self.odd_times))
        times = pa.array(self.odd_times, RAW.field("timestamp").type)
        stream.publish(sent.set_column(RAW.get_field_index("timestamp"), RAW.field("timestamp"), times))
        source = stream.open()
        try:
            reader = self.read_once(source)
        finally:
            source.close()
            stream.close()
        valid_times = [times[i].as_py() if FIRST_MS <= at <= LAST_MS else None for i, at in enumerate(self.odd_times)]
        expected = dict(zip(map(get_position, sent.to_pylist()), valid_times, strict=True))
        read_times = {get_position(row): row["timestamp"] for row in reader.rows}
        assert read_times == expected, [(read_times.get(p), at) for p, at in expected.items() if read_times.get(p) != at]

    def test_exactly_once_per_run(self) -> None:
        """Every record is delivered once. A second run from the end reads nothing."""
        with self.open_stream() as (stream, source):
            reader = self.read_once(source)
            counted = Counter(get_position(row) for row in reader.rows)
            assert counted == Counter(get_position(row) for row in self.list_expected(stream, 0, 20).to_pylist())
            assert not self.read_once(source, Position(reader.position)).rows

    def test_error_passes_through(self) -> None:
        """An exception of `consume_batch` ends the call, unchanged. The source can run again."""
        with self.open_stream() as (_, source):

            def failing(_: Batch[Any]) -> None:
                raise LookupError("from consume_batch")

            with pytest.raises(LookupError, match="from consume_batch"):
                source.run(Position(), failing, threading.Event(), once=True)
            assert len(self.read_once(source).rows) == 20

    def test_bounded_read(self) -> None:
        """`read` returns exactly [start, until) of the partitions in `until`, and nothing if that is empty."""
        with self.open_stream() as (stream, source):
            partition, offsets = next(
                (p, offsets) for p, offsets in self.list_offsets(stream, 20).items() if len(offsets) >= 3
            )
            bounds = [*offsets, self.make_whole_span(stream, 20).end[partition]]
            for start, until in ((0, 2), (1, len(offsets)), (2, 2)):
                reader = BatchRecorder(self.to_arrow, {partition: bounds[start]})
                source.read(
                    Position({partition: bounds[start]}), Position({partition: bounds[until]}), reader, threading.Event()
                )
                assert reader.offsets().get(partition.partition, []) == offsets[start:until]
                assert set(reader.offsets()) <= {partition.partition}
                assert reader.position[partition] == bounds[until]

    def test_read_within_run(self) -> None:
        """`read` may be called within `consume_batch` of `run`, and does not disturb it."""
        with self.open_stream() as (stream, source):
            span = self.make_whole_span(stream, 20)
            inner: list[int] = []

            def reread(_: BatchRecorder) -> None:
                reader = BatchRecorder(self.to_arrow)
                start = span.start.only(p for p, offset in span.end.items() if offset)
                source.read(start, span.end.only(start), reader, threading.Event())
                inner.append(len(reader.rows))

            outer = BatchRecorder(self.to_arrow, after_batch=reread)
            source.run(Position(), outer, threading.Event(), once=True)
            assert set(inner) == {20}
            assert len(outer.rows) == 20

    def test_follows_the_stream(self) -> None:
        """Without `once`, later records are read too. `stop` ends the call. An idle source calls with empty batches."""
        with self.open_stream(5) as (stream, source):
            stop, seen = threading.Event(), threading.Event()

            def watch(reader: BatchRecorder) -> None:
                if len(reader.rows) == 5 and reader.empties and not seen.is_set():
                    seen.set()
                    stream.publish(make_records(stream, 5, 9))
                if len(reader.rows) >= 9:
                    stop.set()

            reader = BatchRecorder(self.to_arrow, after_batch=watch)
            late = threading.Timer(SECONDS, stop.set)
            late.start()
            source.run(Position(), reader, stop, once=False)
            late.cancel()
            assert seen.is_set(), "no empty batch came while the stream was idle"
            assert len(reader.rows) == 9

    def test_lost_positions_are_reported(self) -> None:
        """A position beyond the end, or in a missing partition, is a loss and has a sentence. A valid position is no
        loss."""
        with self.open_stream() as (stream, source):
            reader = self.read_once(source)
            good = Position(reader.position)
            assert not source.losses(good, reader.identity)
            existing = next(iter(good))
            unknown = TopicPartition(stream.topic, 99)
            losses: Mapping[TopicPartition, str] = source.losses(
                Position({**good, existing: good[existing] + 5, unknown: 1}), reader.identity
            )
            assert set(losses) == {existing, unknown}
            assert all(sentence.strip() for sentence in losses.values())

    def test_start_and_end_of_the_stream_are_returned(self) -> None:
        """`end` is the current or very recent end of the stream. `start` and `beginning` are its start."""
        with self.open_stream() as (stream, source):
            end = source.end()
            span = self.make_whole_span(stream, 20)
            assert drop_empty(end) == drop_empty(span.end)
            assert drop_empty(source.start()) == drop_empty(span.start)
            assert all(offset <= span.start.get(partition, 0) for partition, offset in source.beginning().items())
            stream.publish(make_records(stream, 20, 23))
            expected = drop_empty(self.make_whole_span(stream, 23).end)
            late = time.monotonic() + SECONDS
            while sum(source.end().values()) < sum(expected.values()):
                assert time.monotonic() < late, source.end()
                time.sleep(0.05)
            assert drop_empty(source.end()) == expected
            source.committed(end)


def make_records(stream: SourceStream, start: int, end: int) -> pa.Table:
    """Records `start` to `end` of a stream in all its partitions. Some have no key, value or headers."""
    offsets: Counter[int] = Counter()
    rows = []
    for number in range(end):
        partition = number * number % stream.partitions
        rows.append(
            {
                "topic": stream.topic,
                "partition": partition,
                "offset": offsets[partition],
                "timestamp": 1_700_000_000_000 + number,
                "headers": [{"name": "n", "value": str(number).encode()}] if number % 3 else None,
                "key": None if number % 5 == 0 else f"key {number}".encode(),
                "value": None if number % 7 == 3 else f'{{"number": {number}, "text": "é☃"}}'.encode(),
            }
        )
        offsets[partition] += 1
    return pa.Table.from_pylist(rows[start:end], RAW)


def make_whole_span(stream: SourceStream, count: int) -> Span:
    """The span of the first `count` records."""
    counted: Counter[TopicPartition] = Counter(map(get_partition, make_records(stream, 0, count).to_pylist()))
    return Span(Position(dict.fromkeys(counted, 0)), Position(dict(counted)))


def drop_empty(position: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Without partitions that have no records. A source may include them or not."""
    return {partition: offset for partition, offset in position.items() if offset}


def get_partition(row: Mapping[str, Any]) -> TopicPartition:
    """The partition of a record."""
    return TopicPartition(row["topic"], row["partition"])


def get_position(row: Mapping[str, Any]) -> tuple[str, int, int]:
    """Topic, partition and offset of a record."""
    return row["topic"], row["partition"], row["offset"]


def headers_to_dict(headers: Sequence[Mapping[str, Any]] | None) -> dict[str, bytes | None]:
    """Headers by name. None equals an empty list."""
    return {header["name"]: header["value"] for header in headers or ()}
