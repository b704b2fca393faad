"""From table slices to writes of lanes: the schema gate, the row transforms, and the write builder, which shares equal
folds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Generic, cast

import structlog

from replicator.application.catalog import ALL_COLUMNS, Catalog, TargetColumns
from replicator.application.delivery.bounded_queue import RecordFrame, RecordFrames, WriteRequest
from replicator.application.lane_runs import LaneRun, LaneStatus
from replicator.application.lane_schema import SchemaTransition, describe_stop, refuse_other_rule
from replicator.application.problem import Problem, ensure_accounting, to_problem
from replicator.application.quarantine.poison_records import PoisonRecordFinder
from replicator.application.quarantine.rejects import make_stop_error
from replicator.application.runtime_context import RuntimeContext
from replicator.domain.errors import ExitCode
from replicator.domain.event_log import make_event_log_plan
from replicator.domain.plain_values import format_count
from replicator.domain.policy.plan import ApplyPlan, Counts, Facts
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.schema_evolution import SchemaVersion
from replicator.domain.table import TableSpec
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Engine, Frames
from replicator.ports.frames import Batch, F, FoldedChanges, RoutedBatch, Write

from .table_buffer import SchemaMark, TableSlice, cut_segments

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class GateResult(Generic[F]):
    """A table slice after the gate.

    - `slices`: in order, each with the columns that the lane applies.
    - `transition`: the schema change at which the lane stops; None if it goes on.
    - `table_drops`: drops of the table, to be stored even if no rows follow.
    """

    slices: Sequence[tuple[TableSlice[F], TargetColumns]]
    transition: SchemaTransition | None = None
    table_drops: Sequence[SchemaVersion] = ()


class SchemaGate(Generic[F]):
    """Applies each change under the schema under which it was sent. Only the thread of one source uses it."""

    def __init__(self, frames: Frames[F], now: Callable[[], datetime]) -> None:
        self._frames = frames
        self._now = now

    def pass_slice(self, run: LaneRun, slice_: TableSlice[F]) -> GateResult[F]:
        """The slice, split at schema changes, up to the position where the lane stops. Moves the lane's schema."""
        pieces: list[tuple[TableSlice[F], TargetColumns]] = []
        table_drops: list[SchemaVersion] = []
        marks = [mark for mark in slice_.marks if mark.table is not None or _is_ahead(run, slice_, mark.start)]
        for at, names in run.schema.find_emptied_columns(slice_.start):
            first, slice_ = self._cut_slice(slice_, Position({**slice_.start, **at}))
            if first.table is not None:
                pieces.append((first, run.schema.select_columns_without(first.table, names)))
        for number, mark in enumerate(marks):
            transition = self._find_transition(run, mark)
            if transition is None:
                continue
            if transition.decision.stops:
                # Per partition, the first offset that the lane must not apply.
                new = (later.start for later in marks[number:] if self._find_transition(run, later) is not None)
                first, _ = self._cut_slice(slice_, Position.lowest(new))
                return GateResult([*pieces, (first, self._select_columns(run, first))], transition, table_drops)
            if transition.has_cut:
                first, slice_ = self._cut_slice(slice_, mark.start)
                pieces.append((first, self._select_columns(run, first)))
            if transition.version.dropped and run.schema.has_stored_versions:
                table_drops.append(transition.version)
            run.schema.apply_transition(transition)
            if transition.decision.changes and not transition.is_known:
                emptied = {"emptied": list(transition.version.emptied)} if transition.version.emptied else {}
                changes = list(transition.version.changes)
                log.info("schema changed", lane=run.lane.id, schema=transition.version.number, changes=changes, **emptied)
        return GateResult([*pieces, (slice_, self._select_columns(run, slice_))], table_drops=table_drops)

    def _find_transition(self, run: LaneRun, mark: SchemaMark) -> SchemaTransition | None:
        if mark.table is None:
            return run.schema.find_drop_transition(mark.start, self._now())
        return run.schema.find_transition(mark.table, mark.start, self._now())

    def _select_columns(self, run: LaneRun, slice_: TableSlice[F]) -> TargetColumns:
        return ALL_COLUMNS if slice_.table is None else run.schema.select_columns(slice_.table)

    def _cut_slice(self, slice_: TableSlice[F], at: Position) -> tuple[TableSlice[F], TableSlice[F]]:
        """The slice below a position, and the rest."""
        ends = {p: min(o, max(at.get(p, o), slice_.start.get(p, o))) for p, o in slice_.end.items()}
        end = Position(ends)
        if slice_.frame is None:
            return replace(slice_, end=end), replace(slice_, start=end)
        rest, below = self._frames.split(slice_.frame, Span.from_position(at))
        return replace(slice_, frame=self._drop_empty(below), end=end), replace(
            slice_, frame=self._drop_empty(rest), start=Position({**slice_.start, **end})
        )

    def _drop_empty(self, frame: F) -> F | None:
        return frame if self._frames.count(frame) else None


def _is_ahead(run: LaneRun, slice_: TableSlice[F], at: Position) -> bool:
    """True if the record at `at` lies in the slice, and the lane has not read it yet."""
    return all(max(slice_.start[p], run.processed_to.get(p, o)) <= o < slice_.end[p] for p, o in at.items())


# Row transforms of a table slice for its lanes. Lanes with the same transforms and position share the result.


@dataclass(frozen=True)
class TransformedSlice(Generic[F]):
    """A table slice as a lane applies it.

    - `slices`: the slices to fold one by one; together they cover the whole slice.
    - `rejects`: the rejected changes; None without any.
    - `counts`: the changes that are in none of `slices`.
    """

    slices: Sequence[TableSlice[F]]
    rejects: F | None
    counts: Counts


class SharedSlice(Generic[F]):
    """A slice with changes, for all its lanes: they share equal transforms and folds.

    `folded`: folded changes by sharing key and trimmed position. `WriteBuilder` fills it.
    """

    def __init__(self, engine: Engine[F], slice_: TableSlice[F], frame: F) -> None:
        self._engine = engine
        self._slice = slice_
        self.frame = frame
        self._transformed: dict[object, TransformedSlice[F]] = {}
        self.folded: dict[object, Sequence[FoldedChanges[F]]] = {}

    def transform_for_lane(self, plan: ApplyPlan, trim: Position) -> TransformedSlice[F]:
        """The slice for a lane with this plan, without the changes below `trim`, which are processed."""
        key = (plan.row_transforms, tuple(sorted(trim.items())))
        if key not in self._transformed:
            frame, counts = self.frame, Counts()
            if trim:
                repeated, frame = self._engine.frames.split(frame, Span.below(trim))
                counts = Counts(duplicate=self._engine.frames.count(repeated))
            if plan.row_transforms:
                transformed = self._engine.transform_rows(frame, plan)
                # Cut again: the table buffer has cut the changes as the source sent them.
                slices = cut_segments(self._engine.frames, transformed.frame, plan.table, self._slice)
                rejects = transformed.rejects if transformed.counts.rejected else None
                self._transformed[key] = TransformedSlice(slices, rejects, transformed.counts + counts)
            else:
                self._transformed[key] = TransformedSlice([replace(self._slice, frame=frame)], None, counts)
        return self._transformed[key]


TopicIdentity = Mapping[str, str]
StoreSchemaVersion = Callable[[LaneRun, SchemaVersion], None]
"""Stores a schema version in the lane's sink."""


class WriteBuilder(Generic[F]):
    """Makes the writes of one source's lanes. Only the thread of the source uses it.

    It moves a lane's `processed_to` and `queued_to`. Without anything to write only `processed_to` moves;
    `build_position_write` writes the rest.
    """

    def __init__(
        self,
        runtime: RuntimeContext[F],
        catalog: Catalog[F],
        decoder: Decoder,
        store_schema_version: StoreSchemaVersion,
        poison_records: PoisonRecordFinder[F],
    ) -> None:
        self._note_decoding = poison_records.note_decoding
        self._store_schema_version = store_schema_version
        self._gate: SchemaGate[F] = SchemaGate(runtime.engine.frames, runtime.now)
        self._runtime = runtime
        self._catalog = catalog
        self._decoder = decoder
        self._engine = runtime.engine
        self._log_plan = make_event_log_plan()

    def build_slice_writes(
        self, slices: Sequence[TableSlice[F]], runs: Sequence[LaneRun], identity: TopicIdentity
    ) -> list[WriteRequest[F]]:
        """The writes of slices for the lanes that follow their buffer. Lanes that have stopped meanwhile get none."""
        out = []
        for slice_ in slices:
            shared: dict[int, SharedSlice[F]] = {}
            identities = select_identities(identity, slice_.end)
            for run in [run for run in runs if run.is_active]:
                gap = any(run.processed_to.get(p, start) < start for p, start in slice_.start.items())
                ensure_accounting(not gap, f"Lane {run.lane.id} would miss the records before its next slice.")
                gated = self._gate.pass_slice(run, slice_)
                for version in gated.table_drops:
                    self._store_schema_version(run, version)
                for piece, columns in gated.slices:
                    if piece.frame is None:
                        run.processed_to = run.processed_to.advanced_to(piece.end)
                        continue
                    shared_slice = shared.setdefault(id(piece.frame), SharedSlice(self._engine, piece, piece.frame))
                    out += self._build_lane_writes(run, piece, columns, shared_slice, identities)
                stop = gated.transition
                if stop is not None and run.status is not LaneStatus.SUSPENDED:
                    # The lane stops once its queued writes are committed.
                    run.schema.versions[stop.version.number] = stop.version
                    self._store_schema_version(run, stop.version)
                    self._runtime.lanes.stop(run, Problem(ExitCode.RUNTIME, *describe_stop(run.lane, stop)))
        return out

    def _build_lane_writes(
        self, run: LaneRun, slice_: TableSlice[F], columns: TargetColumns, shared: SharedSlice[F], identity: TopicIdentity
    ) -> list[WriteRequest[F]]:
        out: list[WriteRequest[F]] = []
        plan = self._plan_lane(run, slice_.table, columns)
        if plan is None:
            return out
        trim = run.processed_to.only(p for p, start in slice_.start.items() if run.processed_to.get(p, start) > start)
        transformed = shared.transform_for_lane(plan, trim)
        if not self._store_rejects_or_stop(run, transformed, slice_):
            return out
        key = (plan.fold_sharing_key, tuple(sorted(trim.items())))
        if key not in shared.folded:
            shared.folded[key] = self._fold_slices(transformed, plan, shared.frame)
        for piece, part in zip(transformed.slices, shared.folded[key], strict=True):
            span = Span.between({**piece.start, **run.queued_to}, piece.end)
            if span and (part.rows or part.counts.total):
                write = Write(run.lane, plan, part, span, identity)
                out.append(self._advance_with_request(run, write, piece.end, piece.raw))
            else:
                run.processed_to = run.processed_to.advanced_to(piece.end)
        return out

    def _fold_slices(self, transformed: TransformedSlice[F], plan: ApplyPlan, frame: F) -> list[FoldedChanges[F]]:
        """The fold of each slice of a transformed `frame`. The last one also counts the changes that are in no slice."""
        folded = [self._engine.fold(piece.frame, plan) for piece in transformed.slices if piece.frame is not None]
        changes = self._engine.frames.count(frame)
        accounted = sum(part.rows + part.counts.total for part in folded) + transformed.counts.total
        ensure_accounting(
            changes == accounted,
            f"The fold accounts for {accounted} of {format_count(changes, 'change')} of {plan.table.name}.",
        )
        return [*folded[:-1], replace(folded[-1], counts=folded[-1].counts + transformed.counts)]

    def build_log_writes(
        self, batch: Batch[F], routed: RoutedBatch[F] | None, runs: Sequence[LaneRun], exclude: Mapping[str, set[str]]
    ) -> list[WriteRequest[F]]:
        """The writes of a batch for event logs: every record, except for topics that the log's sink excludes.

        A log is suspended if a mask names an unknown column: it would store the values unmasked. `routed`: may
        be None if the source has no private columns.
        """
        log_frames: dict[object, F] = {}
        out = []
        for run in runs:
            topics = exclude.get(run.lane.sink, set())
            span = batch.span.only(p for p in batch.span.end if p.topic not in topics).after(run.processed_to)
            if not span:
                continue
            if routed:
                read_topics = {p.topic for p in span.end}
                with self._note_decoding(batch.span):
                    slices = (slice_ for slice_ in routed.slices if routed.topics[slice_.table] & read_topics)
                    masks = (self._catalog.find_unknown_mask(slice_) for slice_ in slices)
                    unknown = next((one for one in masks if one is not None), None)
                if unknown is not None:
                    self._runtime.lanes.suspend(run, to_problem(unknown), unknown)
                    continue
            key = (tuple(sorted(span.start.items())), tuple(sorted(span.end.items())))
            if key not in log_frames:
                with self._note_decoding(batch.span):
                    records = batch.frame if span == batch.span else self._engine.frames.split(batch.frame, span)[0]
                    log_frames[key] = self._engine.log(records, self._decoder)
            rows = self._engine.frames.count(log_frames[key])
            folded = FoldedChanges(log_frames[key], Facts(), Counts(), rows, batch.size)
            whole = Span.between({**span.start, **run.queued_to}, span.end)  # With offsets that had no record.
            write = Write(run.lane, self._log_plan, folded, whole, dict(batch.identity))
            out.append(self._advance_with_request(run, write, span.end, ()))
        return out

    def build_position_write(self, run: LaneRun, empty: F | None, identity: TopicIdentity) -> list[WriteRequest[F]]:
        """A write without rows that moves the lane's committed position up to `processed_to`; none if it is there."""
        span = Span.between(run.queued_to, run.processed_to)
        if empty is None or run.is_event_log or not span:
            return []
        table = self._catalog.get_union(run.lane.table)
        plan = self._plan_lane(run, table, run.schema.select_columns(table) if table else ALL_COLUMNS)
        if plan is None:
            return []
        nothing = self._engine.transform_rows(empty, plan).frame if plan.row_transforms else empty
        write = Write(run.lane, plan, self._engine.fold(nothing, plan), span, identity)
        return [self._advance_with_request(run, write, span.end, ())]

    def _plan_lane(self, run: LaneRun, table: TableSpec | None, columns: TargetColumns) -> ApplyPlan | None:
        """The lane's plan for frames of `table`; None, and the lane is suspended, if no plan is possible."""
        try:
            ensure_accounting(table is not None, f"The changes of lane {run.lane.id} have no table.")
            plan = self._catalog.plan_lane(run.lane, cast("TableSpec", table), columns)
            refuse_other_rule(run.lane, run.rule, plan.rule)
        except Exception as error:
            self._runtime.lanes.suspend(run, to_problem(error), error)
            return None
        run.rule = plan.rule
        return plan

    def _store_rejects_or_stop(self, run: LaneRun, transformed: TransformedSlice[F], slice_: TableSlice[F]) -> bool:
        """Store rejects of the row transforms durably, before any position moves past them.

        False if the lane has stopped.
        """
        if transformed.rejects is not None:
            lane, raw = run.lane, RecordFrames(slice_.raw)
            rejects = self._runtime.rejects
            stored = rejects.keep_rejects(
                transformed.rejects, raw, stage="shape", source=lane.source, table=lane.table, lane=lane.id
            )
            rejects.publish_counts(one.kind for one in stored)
            if lane.stops:
                stop = make_stop_error(self._engine.frames.rejected(transformed.rejects, raw)[0])
                self._runtime.lanes.suspend(run, to_problem(stop), stop)
                return False
        return True

    def _advance_with_request(
        self, run: LaneRun, write: Write[F], end: Mapping[TopicPartition, int], raw: tuple[RecordFrame[F], ...]
    ) -> WriteRequest[F]:
        run.processed_to = run.processed_to.advanced_to(end)
        run.queued_to = run.queued_to.advanced_to(write.span.end)
        write = replace(write, at=self._runtime.now())
        return WriteRequest(run, write, run.position_generation, raw)


def cover_topics(span: Span, topics: Iterable[str]) -> Span:
    """The span, limited to partitions of `topics`."""
    topic_set = set(topics)
    return span.only(p for p in span.end if p.topic in topic_set)


def select_identities(identity: TopicIdentity, partitions: Iterable[TopicPartition]) -> dict[str, str]:
    """The identities of the topics of `partitions`."""
    topics = {p.topic for p in partitions}
    return {topic: topic_id for topic, topic_id in identity.items() if topic in topics}
