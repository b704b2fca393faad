"""The batch decoder: turns a batch into changes by table, and accounts for every record."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Generic

from replicator.application.catalog import Catalog, UnusableTable
from replicator.application.delivery.bounded_queue import BatchRecords
from replicator.application.lane_registry import SourceContext
from replicator.application.problem import ensure_accounting
from replicator.application.quarantine.poison_records import PoisonRecordFinder
from replicator.application.quarantine.rejects import BlockedKeys, StoredReject, make_stop_error
from replicator.application.runtime_context import RuntimeContext
from replicator.domain.errors import Retryable
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.table import TableSpec
from replicator.ports.components import CONTINUE, HOLD_KEY, STOP_LANE
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Prefetch
from replicator.ports.frames import Batch, ConsumeBatch, F, RecordSlice, RoutedBatch
from replicator.ports.runtime import RecordsRead

from .source_progress import SourceProgress
from .table_buffer import SchemaMark, SchemaSlice
from .write_builder import cover_topics

UNCONFIGURED = "unconfigured"
LOG_ONLY = "event_log_only"


class BatchDecoder(Generic[F]):
    """Routes and decodes the records of one source. Rejects are durable before anything is returned."""

    def __init__(
        self,
        context: SourceContext[F],
        decoder: Decoder,
        catalog: Catalog[F],
        runtime: RuntimeContext[F],
        poison_records: PoisonRecordFinder[F],
        *,
        progress: SourceProgress,
    ) -> None:
        self._source = context.name
        self._progress = progress
        self._decoder = decoder
        self._rules_for = context.rules_for
        self._catalog = catalog
        self._engine = runtime.engine
        self._frames = runtime.engine.frames
        self._rejects = runtime.rejects
        self._telemetry = runtime.telemetry
        self._on_reject = context.on_reject
        self._blocked_keys = BlockedKeys(context.name, runtime.engine.frames, runtime.rejects)
        self._note_decoding = poison_records.note_decoding
        self._counted = CountedSpans()

    def add_counted(self, table: str, span: Span) -> None:
        """Note that an earlier run counted the rejects in the span. `table` is empty for an event log."""
        self._counted.add(table, span)
        self._counted.add(NO_TABLE, span)

    def route_batch(self, batch: Batch[F]) -> RoutedBatch[F]:
        """The batch by table. AccountingError unless every record is decoded, ignored or rejected.

        Rejects are counted once for all lanes.
        """
        with self._note_decoding(batch.span):
            routed = self._engine.route(batch.frame, self._decoder)
        decoded = sum(self._frames.count(slice_.frame) for slice_ in routed.slices)
        accounted = decoded + sum(routed.ignored.values()) + routed.reject_count
        ensure_accounting(
            accounted == batch.records,
            f"A batch of {self._source} has {format_count(batch.records, 'record')}, but {accounted} are accounted for.",
        )
        with self._count_rejects(NO_TABLE, batch.span) as rejected:
            if routed.reject_count:
                stored = self._rejects.keep_rejects(
                    routed.rejects, [batch.frame], stage="route", source=self._source, table=NO_TABLE
                )
                count = len(stored)
                sentence = f"Rejected: {format_count(routed.reject_count, 'record')}, but {count} became dead letters."
                ensure_accounting(count == routed.reject_count, sentence)
                rejected.extend(stored)
                self._handle_rejects(self._on_reject, routed.rejects, batch.frame, NO_TABLE)
        return routed

    def decode_changes(
        self,
        table: str,
        batch: Batch[F],
        routed: RoutedBatch[F],
        topics: Iterable[str],
        on_decoded: Callable[[F], None] | None = None,
    ) -> Sequence[SchemaSlice[F]]:
        """The changes of one table's records, one slice per schema, in order. A slice whose changes all follow a drop of the
        table begins there.

        - `topics`: the topics with records of the table.
        - `on_decoded`: called with every decoded frame, rejects included.

        `application.catalog.UnusableTable` if the table cannot be replicated.
        """
        slices, drops = [one for one in routed.slices if one.table == table], routed.drops.get(table, ())
        with self._note_decoding(batch.span):
            for slice_ in slices:
                self._catalog.learn_schema(slice_)  # A later slice may have the key that an earlier one lacks.
        changes: list[tuple[F, TableSpec, Position]] = []
        at = batch.span.start
        with self._count_rejects(table, cover_topics(batch.span, topics)) as rejected:
            for slice_ in slices:
                rules = self._rules_for(slice_.table)
                on_reject = CONTINUE if rules is None else rules.on_reject
                frame, rejects = self._decode_slice(slice_, on_reject, batch, rejected)
                if on_decoded is not None:
                    on_decoded(frame)
                    on_decoded(rejects)
                if self._frames.count(frame):
                    ends = self._frames.ends(frame) if len(slices) > 1 else at
                    schema = self._catalog.learn_schema(slice_)
                    start = self._find_change_start(frame, at.only(ends), drops)
                    changes.append((frame, schema, start))
                    at = at.advanced_to(ends)
        return [SchemaSlice(f, SchemaMark(schema, start), self._catalog.find_union(schema)) for f, schema, start in changes]

    def decode_again(self, table: str, batch: Batch[F]) -> Iterator[F]:
        """Decode records of a table that lanes have applied, rejects included. Nothing is stored or counted."""
        with self._note_decoding(batch.span):
            for slice_ in self._engine.route(batch.frame, self._decoder).slices:
                if slice_.table == table:
                    yield from self._engine.decode(slice_, self._decoder, self._catalog.learn_schema(slice_))

    def _find_change_start(self, frame: F, start: Position, drops: Sequence[Position]) -> Position:
        """The start of a slice's changes: behind each drop that all of them follow, in its partition."""
        for drop in drops:
            if any(start.get(p, o + 1) <= o for p, o in drop.items()):
                _, others = self._frames.split(frame, Span.from_position(drop))
                before = self._frames.ends(others)
                start = Position({**start, **{p: o + 1 for p, o in drop.items() if p in start and p not in before}})
        return start

    def _decode_slice(
        self, slice_: RecordSlice[F], on_reject: str, batch: Batch[F], rejected: list[StoredReject]
    ) -> tuple[F, F]:
        """The changes of a slice, and its rejects, which are durable and added to `rejected`.

        Blocked records are in neither frame.
        """
        raw = batch.frame
        if on_reject == HOLD_KEY:
            slice_, blocked_records = self._drop_blocked(slice_, raw)
            rejected.extend(blocked_records)
        with self._note_decoding(batch.span):
            frame, rejects = self._engine.decode(slice_, self._decoder, self._catalog.learn_schema(slice_))
        good, bad = self._frames.count(frame), self._frames.count(rejects)
        records = self._frames.count(slice_.frame)
        ensure_accounting(
            good + bad >= records, f"Only {good + bad} of {format_count(records, 'record')} of {slice_.table} were decoded."
        )
        if not bad:
            return frame, rejects
        stored = self._store_rejects(rejects, raw, slice_.table)
        rejected.extend(stored)
        if self._handle_rejects(on_reject, rejects, raw, slice_.table):
            # Later records of these keys are blocked now: decode the slice without them. The rest stays the same.
            slice_, blocked_records = self._drop_blocked(slice_, raw)
            positions = {(one.partition, one.offset) for one in blocked_records}
            others = [one for one in stored if (one.partition, one.offset) not in positions]
            rejected[-len(stored) :] = [*blocked_records, *others]
            with self._note_decoding(batch.span):
                frame, rejects = self._engine.decode(slice_, self._decoder, self._catalog.learn_schema(slice_))
        return frame, rejects

    def _drop_blocked(self, slice_: RecordSlice[F], raw: F) -> tuple[RecordSlice[F], Sequence[StoredReject]]:
        """The records of a slice that are not blocked, and the blocked ones, which are dead letters."""
        free_records, blocked_records = self._blocked_keys.split_blocked(slice_.frame)
        if blocked_records is None:
            return slice_, ()
        return replace(slice_, frame=free_records), self._store_rejects(blocked_records, raw, slice_.table)

    def _store_rejects(self, rejects: F, raw: F, table: str) -> Sequence[StoredReject]:
        return self._rejects.keep_rejects(rejects, [raw], stage="decode", source=self._source, table=table)

    @contextmanager
    def _count_rejects(self, table: str, span: Span) -> Iterator[list[StoredReject]]:
        """Collects the rejects of these records, and counts new ones.

        After Retryable none: the records are read again.
        """
        stored: list[StoredReject] = []
        comes_again = False
        try:
            yield stored
        except Retryable:
            comes_again = True
            raise
        finally:
            if not comes_again:
                new = self._counted.add(table, span)
                kinds = [one.kind for one in stored if any(one.offset in offsets for offsets in new.get(one.partition, ()))]
                self._rejects.publish_counts(kinds)
                self._rejects.count_records(len(kinds))

    def _handle_rejects(self, on_reject: str, rejects: F, raw: F, table: str) -> bool:
        """React to stored rejects as configured. True if later records of their keys are blocked.

        Raises if the lanes of the table, or the whole source, must stop.
        """
        if on_reject == STOP_LANE:
            stop = make_stop_error(self._frames.rejected(rejects, [raw])[0])
            raise UnusableTable(stop) if table else stop
        # For a record without a known table, the table of later records of its key decides.
        return (on_reject == HOLD_KEY or not table) and self._blocked_keys.add_rejects(rejects, raw)

    def count_records(self, batch: Batch[F], routed: RoutedBatch[F]) -> None:
        """Count the records of a batch of the main stream. Batches of lanes that catch up are not counted."""
        ignored = Counter(routed.ignored)
        for slice_ in routed.slices:
            rules = self._rules_for(slice_.table)
            if rules is None or not rules.lanes:
                ignored[UNCONFIGURED if rules is None else LOG_ONLY] += self._frames.count(slice_.frame)
        self._progress.ignored.update(ignored)
        self._telemetry.record(RecordsRead(self._source, batch.records, ignored))


# Counted spans: offsets whose rejects were counted. Several lanes may read the same records.

Offsets = Mapping[TopicPartition, Sequence[range]]
NO_TABLE = ""
"""Stands for rejects of unrouted records."""


class CountedSpans:
    """By table and partition, the offsets whose rejects were counted in this run or earlier. For one thread."""

    def __init__(self) -> None:
        self._spans: dict[tuple[str, TopicPartition], list[range]] = {}

    def add(self, table: str, span: Span) -> Offsets:
        """Add a span. Returns its offsets that were not in it before."""
        added = {}
        for p, end in span.end.items():
            start = at = span.start[p]
            if start >= end:
                continue
            counted, new = self._spans.get((table, p), []), []
            touching = [one for one in counted if one.stop >= start and one.start <= end]
            for one in touching:
                if at < one.start:
                    new.append(range(at, one.start))
                at = max(at, one.stop)
            if at < end:
                new.append(range(at, end))
            whole = range(min([start, *(one.start for one in touching)]), max([end, *(one.stop for one in touching)]))
            others = [one for one in counted if one not in touching]
            self._spans[table, p] = sorted([*others, whole], key=lambda one: one.start)
            added[p] = new
        return added


# Prefetch: an engine starts to decode the next batches while the current one is applied.


@contextmanager
def prefetch_batches(
    runtime: RuntimeContext[F], decoder: Decoder, batch_records: BatchRecords[F], process: ConsumeBatch[F], *, once: bool
) -> Iterator[ConsumeBatch[F]]:
    """The consumer of a source's batches, which passes them to `process`.

    If the stream is read to its end (`once`) and the engine prefetches, the last `depth` batches are held. Each is packed
    and decoded at once; it is applied when newer ones arrive. The rest is applied at the end of the block, and before an
    error of the source is raised. It is not applied after an error of `process`, or a stop.
    """
    prefetch = runtime.engine.features.prefetch
    # A daemon does not prefetch: it must answer soon, its batches are small, and its memory is limited.
    if not once or prefetch is None:
        yield process
        return
    ahead = _PrefetchQueue(prefetch, decoder, batch_records, process)
    try:
        try:
            yield ahead.add_batch
        except Exception:
            if not ahead.failed and not runtime.stop.is_set():
                ahead.release_until(0)
            raise
        if not runtime.stop.is_set():
            ahead.release_until(0)
    finally:
        prefetch.stop_workers()


class _PrefetchQueue(Generic[F]):
    def __init__(
        self, prefetch: Prefetch[F], decoder: Decoder, batch_records: BatchRecords[F], process: ConsumeBatch[F]
    ) -> None:
        self._prefetch, self._decoder, self._batch_records, self._process = prefetch, decoder, batch_records, process
        self._held: deque[Batch[F]] = deque()
        self.failed = False

    def add_batch(self, batch: Batch[F]) -> None:
        """Start and hold a batch. A batch without records is not held: sources send it to give others a turn."""
        try:
            if batch.records:
                self._batch_records.begin(batch)
                self._prefetch.begin(batch.frame, self._decoder)
            self._held.append(batch)
            self.release_until(self._prefetch.depth if batch.records else 0)
        except BaseException:
            self.failed = True
            raise

    def release_until(self, max_batches: int) -> None:
        """Apply held batches until `max_batches` are left."""
        while len(self._held) > max_batches:
            self._process(self._held.popleft())
