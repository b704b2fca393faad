"""The queue of writes for one sink: the records behind them, and how writes are grouped and joined."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import BinaryIO, Generic, cast, overload

import pyarrow as pa

from replicator.application.lane_runs import LaneRun
from replicator.application.problem import Stopped, ensure_accounting
from replicator.domain.plain_values import format_count
from replicator.domain.policy import EVENT_LOG_POLICY
from replicator.domain.policy.plan import Counts, Facts, find_highest, merge_facts
from replicator.domain.position import Span
from replicator.domain.transactions import CompletenessWatermark
from replicator.ports.engine import Engine
from replicator.ports.frames import Batch, F, FoldedChanges, Stop, Write

# The queue keeps the records behind uncommitted writes, plain or packed, because the sink may reject them.

IPC_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
"""Compression of packed records.

Records of one table are much alike: JSON with schemas shrinks to a twentieth. zstd halves that again, but needs
nearly twice the time (measured), which reading and decoding would lose.
"""

MAX_BEGUN = 8
"""Batches whose packed records are shared by several tables: the current batch and the prefetched ones.

See `ports.engine.Prefetch`.
"""


class RecordFrame(Generic[F]):
    """The raw frame of one batch. `size`: the bytes that it keeps in memory."""

    def __init__(self, frame: F, size: int) -> None:
        self._frame: F | None = frame
        self._packed: pa.Buffer | None = None
        self.size = size

    @classmethod
    def from_buffer(cls, buffer: pa.Buffer) -> RecordFrame[F]:
        """Records as `write` wrote them."""
        frame: RecordFrame[F] = cls(cast("F", None), buffer.size)
        frame._packed = buffer
        return frame

    def pack(self) -> None:
        """Compress the frame to save memory, if it is an Arrow table."""
        if not isinstance(self._frame, pa.Table):
            return
        into = pa.BufferOutputStream()
        with pa.ipc.new_stream(into, self._frame.schema, options=IPC_OPTIONS) as writer:
            writer.write_table(self._frame)
        self._frame, self._packed = None, into.getvalue()
        self.size = self._packed.size

    def write(self, file: BinaryIO) -> int:
        """Write the packed records to a file. Returns the number of bytes."""
        self.pack()
        return file.write(cast("pa.Buffer", self._packed))

    @property
    def frame(self) -> F:
        """The frame. If packed, each call makes a new one."""
        if self._packed is None:
            return cast("F", self._frame)
        with pa.ipc.open_stream(self._packed) as reader:
            return cast("F", reader.read_all())


class RecordFrames(Sequence[F]):
    """The frames of several batches, each unpacked on access."""

    def __init__(self, records: Sequence[RecordFrame[F]]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, number: int) -> F: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[F]: ...

    def __getitem__(self, number: int | slice) -> F | Sequence[F]:
        return RecordFrames(self._records[number]) if isinstance(number, slice) else self._records[number].frame


class BatchRecords(Generic[F]):
    """The records of one batch after another. Tables of the same batch share them.

    `packed`: compress them, for runs in which many batches wait for a commit.
    """

    def __init__(self, *, packed: bool) -> None:
        self._packer = ThreadPoolExecutor(1, "packing") if packed else None
        self._begun: deque[tuple[Span, RecordFrame[F], Future[None]]] = deque(maxlen=MAX_BEGUN)

    def begin(self, batch: Batch[F]) -> None:
        """Start to pack the records of a batch in another thread, before they are needed."""
        if self._packer is None or self._find_packed(batch) is not None:
            return
        records = RecordFrame(batch.frame, batch.size)
        self._begun.append((batch.span, records, self._packer.submit(records.pack)))

    def get_records(self, batch: Batch[F]) -> RecordFrame[F]:
        """The records of a batch."""
        self.begin(batch)
        packed_records = self._find_packed(batch)
        if packed_records is None:
            return RecordFrame(batch.frame, batch.size)
        records, packed = packed_records
        packed.result()
        return records

    def _find_packed(self, batch: Batch[F]) -> tuple[RecordFrame[F], Future[None]] | None:
        return next(((records, packed) for span, records, packed in self._begun if span == batch.span), None)


def count_bytes(records: Iterable[RecordFrame[F]]) -> int:
    """The bytes that these records keep in memory. Tables and lanes share the records of a batch."""
    return sum(one.size for one in set(records))


# The queue of writes: bounded in bytes.

WAKE_SECONDS = 0.2
"""Seconds after which a waiting thread checks its stop flag again."""


@dataclass(frozen=True)
class WriteRequest(Generic[F]):
    """A write for one lane. It is void once the generation of the lane has changed.

    - `raw`: the records behind the write, for rejects that the sink finds.
    - `bundle`: writes with the same number are committed together; 0: none.
    - `voided`: `LaneRuns.voided` when its watermark was computed.
    """

    run: LaneRun
    write: Write[F]
    generation: int
    raw: tuple[RecordFrame[F], ...]
    bundle: int = 0
    voided: int = 0

    def withdraw_watermark(self) -> WriteRequest[F]:
        """The write with a watermark that names no transaction."""
        complete = self.write.complete
        if complete is None:
            return self
        return replace(self, write=replace(self.write, complete=CompletenessWatermark(complete.source)))


def measure_writes(requests: Sequence[WriteRequest[F]]) -> int:
    """The bytes that these writes keep in memory: their rows, and the records behind them."""
    return sum(one.write.folded.size for one in requests) + count_bytes(raw for one in requests for raw in one.raw)


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """A watermark that is true once all writes queued before it are committed.

    `voided`: `LaneRuns.voided` when it was computed.
    """

    complete: CompletenessWatermark
    voided: int


@dataclass(frozen=True)
class Dequeued(Generic[F]):
    """The content of a queue: calls to run first, writes, and by source the watermark after the last write."""

    calls: Sequence[Callable[[], None]] = ()
    requests: Sequence[WriteRequest[F]] = ()
    publish_requests: Mapping[str, PublishRequest] = field(default_factory=dict)


class BoundedQueue(Generic[F]):
    """The writes of one sink, from several source threads to one worker thread.

    It is full when it holds `limit()` bytes. Sources wait for room before they make writes, and never with writes in
    hand: each may exceed the limit by one batch. The worker gets the writes once the queue is full, or the first write
    has waited for `gather` seconds.
    """

    def __init__(self, limit: Callable[[], int], gather: float = 0.0) -> None:
        self._limit = limit
        self._gather = gather
        self._ripe = 0.0
        self._changed = threading.Condition()
        self._requests: list[WriteRequest[F]] = []
        self._records: set[RecordFrame[F]] = set()
        self._calls: deque[Callable[[], None]] = deque()
        self._publish_requests: dict[str, PublishRequest] = {}
        self._size = 0
        self._closed = False

    def has_room(self) -> bool:
        """True if it is not full."""
        with self._changed:
            return not self._is_full()

    def wait_for_room(self, given_up: Callable[[], bool], stop: Stop) -> bool:
        """Wait until it is not full. False if `given_up` returns True first, or `stop` is set."""
        with self._changed:
            while self._is_full() and not self._closed:
                if stop.is_set() or given_up():
                    return False
                self._changed.wait(WAKE_SECONDS)
        return True

    def _is_full(self) -> bool:
        return bool(self._requests) and self._size >= self._limit()

    def put(self, requests: Sequence[WriteRequest[F]]) -> None:
        """Add all requests, even if the queue is full: see `wait_for_room`. Raises Stopped if it is closed."""
        with self._changed:
            if self._closed:
                raise Stopped
            for source in {request.run.lane.source for request in requests}:
                self._publish_requests.pop(source, None)
            if not self._requests:
                self._ripe = time.monotonic() + self._gather
            self._requests.extend(requests)
            new = {one for request in requests for one in request.raw} - self._records
            self._records |= new
            self._size += sum(request.write.folded.size for request in requests) + count_bytes(new)
            self._changed.notify_all()

    def submit(self, call: Callable[[], None]) -> None:
        """Add a call for the worker, to be run before the queued writes. Raises Stopped if the queue is closed."""
        with self._changed:
            if self._closed:
                raise Stopped
            self._calls.append(call)
            self._changed.notify_all()

    def put_back(self, calls: Sequence[Callable[[], None]]) -> None:
        """Return calls to the front of the queue."""
        with self._changed:
            self._calls.extendleft(reversed(calls))

    def put_publish_request(self, source: str, request: PublishRequest) -> None:
        """Set the watermark to publish after the queued writes; it needs no room.

        Later writes of the source discard it.
        """
        with self._changed:
            self._publish_requests[source] = request
            self._changed.notify_all()

    def take(self, seconds: float | None = None) -> Dequeued[F] | None:
        """Remove and return everything in the queue. Waits for content, at most `seconds`. None if closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_content() or self._closed, seconds)
            while self._is_unripe():
                self._changed.wait(max(0.0, self._ripe - time.monotonic()))
            if self._closed and not self._has_content():
                return None
            dequeued = Dequeued(tuple(self._calls), tuple(self._requests), dict(self._publish_requests))
            self._calls.clear()
            self._publish_requests.clear()
            self._requests, self._records, self._size = [], set(), 0
            self._changed.notify_all()
            return dequeued

    def _is_unripe(self) -> bool:
        """True while the queue holds nothing but writes, and waits for more of them."""
        if not self._requests or self._is_full() or self._closed or self._calls or self._publish_requests:
            return False
        return time.monotonic() < self._ripe

    def _has_content(self) -> bool:
        return bool(self._requests or self._calls or self._publish_requests)

    def close(self) -> None:
        """Accept no more requests. Queued requests can still be removed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


# Grouping and joining of queued writes.


def group_into_rounds(requests: Iterable[WriteRequest[F]]) -> Iterable[list[list[WriteRequest[F]]]]:
    """Writes in rounds, one call of the sink each: per lane and round, consecutive writes that may be joined."""
    groups: dict[str, list[list[WriteRequest[F]]]] = {}
    for request in requests:
        of_lane = groups.setdefault(request.run.lane.id, [])
        if of_lane and is_joinable(of_lane[-1], request):
            of_lane[-1].append(request)
        else:
            of_lane.append([request])
    for round_ in zip_longest(*groups.values()):
        yield [group for group in round_ if group]


def group_into_packs(requests: Iterable[WriteRequest[F]]) -> Iterable[list[WriteRequest[F]]]:
    """Bundles in order, in packs with one plan per lane: a sink is prepared for one plan at a time.

    A bundle stays whole unless a lane changes its plan within it. Then only its last part publishes its watermark.
    """
    bundles: dict[tuple[str, int], list[WriteRequest[F]]] = {}
    for request in requests:
        bundles.setdefault((request.run.lane.source, request.bundle), []).append(request)
    pack: list[WriteRequest[F]] = []
    for bundle in bundles.values():
        *firsts, last = _split_at_plans(bundle)
        for part in [*([request.withdraw_watermark() for request in first] for first in firsts), last]:
            plans = {request.run.lane.id: (request.generation, request.write.plan) for request in pack}
            if any(plans.get(i.run.lane.id, (i.generation, i.write.plan)) != (i.generation, i.write.plan) for i in part):
                yield pack
                pack = []
            pack = [*pack, *part]
    if pack:
        yield pack


def _split_at_plans(bundle: Sequence[WriteRequest[F]]) -> list[list[WriteRequest[F]]]:
    """The first part has the first plan of each lane, the next part the second plan of lanes that have one, and so on."""
    parts: list[list[WriteRequest[F]]] = [[]]
    latest: dict[str, tuple[int, WriteRequest[F]]] = {}
    for request in bundle:
        number, before = latest.get(request.run.lane.id, (0, request))
        if (before.generation, before.write.plan) != (request.generation, request.write.plan):
            number += 1
        latest[request.run.lane.id] = number, request
        if number == len(parts):
            parts.append([])
        parts[number].append(request)
    return parts


def is_joinable(group: Sequence[WriteRequest[F]], request: WriteRequest[F]) -> bool:
    """True if `request` may be joined with all writes of a group: any of them may hide a row that it needs."""
    return can_join_pair(group[-1], request) and not any(_is_hiding(other.write, request.write) for other in group[:-1])


def can_join_pair(earlier: WriteRequest[F], later: WriteRequest[F]) -> bool:
    """True if both writes may be applied as one: same generation and plan, touching spans, and one segment of the engine.

    One segment means: no change in one hides the row from which the other gets its unchanged values.
    """
    a, b = earlier.write, later.write
    touches = all(b.span.start[p] == end for p, end in a.span.end.items() if p in b.span.start)
    return (
        earlier.generation == later.generation
        and touches
        and not _is_hiding(a, b)
        and (a.plan is b.plan or a.plan == b.plan)
    )


def _is_hiding(earlier: Write[F], later: Write[F]) -> bool:
    """True if a change of one write may hide the row that a change of the other needs: for unchanged values, or for its
    verdict."""
    a, b = earlier.folded.facts, later.folded.facts
    if earlier.plan.has_column_versions:
        return False  # No value is filled from another change.
    if b.has_doubtful_deletes:
        return True  # Only the target's row decides if the delete is applied or rejected.
    if earlier.plan.soft_deletes and (b.truncated_at is not None or (earlier.plan.table.ordered_by and b.has_deletes)):
        return True  # Rows must be written before they are marked as deleted.
    changes_base_row = b.has_key_changes or a.has_key_changes or a.has_deletes or a.truncated_at is not None
    has_unchanged, is_ordered = a.has_unchanged or b.has_unchanged, bool(earlier.plan.table.ordered_by)
    if earlier.plan.table.ignore_null:
        return is_ordered or changes_base_row or has_unchanged or b.truncated_at is not None
    if is_ordered:
        return has_unchanged
    return (b.has_unchanged and changes_base_row) or (a.has_unchanged and b.truncated_at is not None)


def join_writes(engine: Engine[F], group: Sequence[WriteRequest[F]]) -> WriteRequest[F]:
    """Touching writes of one lane as one write. AccountingError if changes get lost."""
    if len(group) == 1:
        return group[0]
    first, last = group[0], group[-1]
    span = first.write.span
    for request in group[1:]:
        span = span.then(request.write.span)
    folded = _fold_writes(engine, [request.write for request in group])
    identity = {k: v for request in group for k, v in request.write.identity.items()}
    raw = tuple(dict.fromkeys(one for request in group for one in request.raw))
    write = replace(last.write, folded=folded, span=span, identity=identity)
    return replace(first, write=write, raw=raw, bundle=last.bundle, voided=last.voided)


def _fold_writes(engine: Engine[F], writes: Sequence[Write[F]]) -> FoldedChanges[F]:
    parts = [write.folded for write in writes]
    counts = sum((part.counts for part in parts), Counts())
    rows = sum(part.rows for part in parts)
    frame = engine.frames.concat([part.frame for part in parts if part.rows] or [parts[0].frame])
    plan = writes[-1].plan
    if plan.policy == EVENT_LOG_POLICY:
        return FoldedChanges(frame, Facts(), counts, rows, sum(part.size for part in parts))
    again = engine.fold(frame, plan)
    ensure_accounting(
        again.rows + again.counts.total == rows,
        f"Folding {format_count(rows, 'row')} of {plan.table.name} again lost some of them.",
    )
    # Folding again sees rows only; the reach of the changes is in the facts of the parts.
    merged = merge_facts([part.facts for part in parts])
    facts = replace(
        again.facts,
        lowest=merged.lowest,
        highest=merged.highest,
        max_delete=merged.max_delete,
        truncated_at=find_highest(*(part.facts.truncated_at for part in parts)),
        newest=merged.newest,
    )
    return replace(again, facts=facts, counts=counts + again.counts)
