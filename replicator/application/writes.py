"""From changes to writes: what each lane still lacks, folded once per group of lanes that can share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, cast

from replicator.domain.columns import UnknownMask
from replicator.domain.event_log import event_log_plan
from replicator.domain.plan import ApplyPlan, Counts, Facts
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.schema_versions import SchemaVersion
from replicator.domain.table import TableSpec
from replicator.ports.decoder import Decoder
from replicator.ports.frames import Batch, F, Folded, Routed, Write

from .catalog import AS_IT_IS, Catalog
from .catalog import Taken as Columns
from .crashes import Crashes
from .feed import Chunk
from .gate import Gate
from .handover import Handed
from .lanes import LaneRun, LaneStatus
from .problem import Problem, ensure, problem_of
from .records import Frames, Keeping, Records
from .rejects import stopped_by
from .schemas import Turn, refuse_other_rule
from .shaping import Shaping, Taken
from .shared import Shared

Identity = Mapping[str, str]
Note = Callable[[LaneRun, SchemaVersion], None]
"""Has the lane's sink remember a schema."""


@dataclass
class _Folds(Generic[F]):
    """A piece on its way to several lanes: by what they make of it, the rows that they share."""

    shaping: Shaping[F]
    folded: dict[object, Sequence[Folded[F]]] = field(default_factory=dict)


class Writes(Generic[F]):
    """Makes the writes of one source's lanes. Used by the thread of the source only.

    Moves a lane's `handed` and `sent`. Where nothing is to be written for a lane, only `handed` moves; `owed` writes what
    its position lags behind by.
    """

    def __init__(self, shared: Shared[F], catalog: Catalog[F], decoder: Decoder, note: Note, crashes: Crashes[F]) -> None:
        self._noting = crashes.decoding
        self._note = note
        self._gate: Gate[F] = Gate(shared.engine, shared.now)
        self._shared = shared
        self._catalog = catalog
        self._decoder = decoder
        self._engine = shared.engine
        self._log_plan = event_log_plan()
        self.keeping: Keeping[F] = Keeping(packed=shared.options.gather > 0)
        """Keeps the records of batches that chunks are made of."""

    def of_chunk(self, chunk: Chunk[F], runs: Sequence[LaneRun], identity: Identity) -> list[Handed[F]]:
        """The writes of a chunk for the lanes that follow its feed, but for those that have stopped meanwhile."""
        runs = [run for run in runs if run.status in (LaneStatus.RUNNING, LaneStatus.CATCHING_UP)]
        for run in runs:
            gap = any(run.handed.get(p, start) < start for p, start in chunk.start.items())
            ensure(not gap, f"Lane {run.lane.id} would miss the records before the chunk it was to get.")
        if chunk.frame is None and not chunk.marks:
            for run in runs:
                run.handed = run.handed.advanced_to(chunk.end)
            return []
        shared: dict[int, _Folds[F]] = {}
        out = []
        for run in runs:
            passed = self._gate.passed(run, chunk)
            for version in passed.drops:
                self._note(run, version)
            for piece, taken in passed.pieces:
                if piece.frame is None:
                    run.handed = run.handed.advanced_to(piece.end)
                    continue
                folds = shared.setdefault(id(piece.frame), _Folds(Shaping(self._engine, piece, piece.frame)))
                out += self._of_piece(run, piece, taken, folds, identity)
            if passed.problem is not None and passed.turn is not None:
                self._stop(run, passed.problem, passed.turn)
        return out

    def _of_piece(
        self, run: LaneRun, chunk: Chunk[F], columns: Columns, folds: _Folds[F], identity: Identity
    ) -> list[Handed[F]]:
        out: list[Handed[F]] = []
        for plan in self._planned(run, chunk.table, columns):
            trim = run.handed.only(p for p, start in chunk.start.items() if run.handed.get(p, start) > start)
            taken = folds.shaping.taken(plan, trim)
            if not self._keep_rejects(run, taken, chunk):
                continue
            key = (plan.fold_key, tuple(sorted(trim.items())))
            if key not in folds.folded:
                folds.folded[key] = self._fold(folds.shaping.frame, taken, plan)
            for piece, rows in zip(taken.pieces, folds.folded[key], strict=True):
                out += self._written(run, plan, rows, piece, identity)
        return out

    def _stop(self, run: LaneRun, problem: Problem, turn: Turn) -> None:
        """The lane goes on no more, once what was handed over is committed."""
        if run.status is LaneStatus.SUSPENDED:
            return
        run.schema.versions[turn.version.number] = turn.version
        self._note(run, turn.version)
        self._shared.lanes.stop(run, problem)

    def of_batch(
        self, batch: Batch[F], routed: Routed[F] | None, runs: Sequence[LaneRun], exclude: Mapping[str, set[str]]
    ) -> list[Handed[F]]:
        """The writes of a batch for event logs: every record, but for the topics that a log's sink excludes. A log that
        would hold what a mask with a wrong name was to mask is suspended. `routed` may be None where nothing is private."""
        frames: dict[object, F] = {}
        out = []
        for run in runs:
            topics = exclude.get(run.lane.sink, set())
            span = batch.span.only(p for p in batch.span.end if p.topic not in topics).after(run.handed)
            if not span:
                continue
            if routed and (unknown := self._unknown_mask(batch, routed, {p.topic for p in span.end})):
                self._shared.lanes.suspend(run, problem_of(unknown), unknown)
                continue
            key = (tuple(sorted(span.start.items())), tuple(sorted(span.end.items())))
            if key not in frames:
                with self._noting(batch.span):
                    frames[key] = self._engine.log(self._within(batch, span), self._decoder)
            rows = self._engine.count(frames[key])
            folded = Folded(frames[key], Facts(), Counts(), rows, batch.size)
            write = Write(run.lane, self._log_plan, folded, span, dict(batch.identity))
            out.append(self._handed(run, write, span.end, (), batch.size))
        return out

    def _unknown_mask(self, batch: Batch[F], routed: Routed[F], topics: set[str]) -> UnknownMask | None:
        with self._noting(batch.span):
            found = (self._catalog.unknown_mask(run) for run in routed.runs if routed.topics[run.table] & topics)
            return next((one for one in found if one is not None), None)

    def owed(self, run: LaneRun, empty: F | None, identity: Identity) -> list[Handed[F]]:
        """A write without rows that brings the lane's position to where it was handed to, when it lags behind."""
        if empty is None or run.is_event_log or not _span(run.sent, run.handed):
            return []
        span = _span(run.sent, run.handed)
        out = []
        table = self._catalog.table(run.lane.table)
        for plan in self._planned(run, table, run.schema.taken(table) if table else AS_IT_IS):
            nothing = self._engine.shape(empty, plan).frame if plan.shape else empty
            write = Write(run.lane, plan, self._engine.fold(nothing, plan), span, identity)
            out.append(self._handed(run, write, span.end, (), 0))
        return out

    def _planned(self, run: LaneRun, table: TableSpec | None, columns: Columns) -> list[ApplyPlan]:
        """The lane's plan for frames of `table`; none, and the lane is suspended, where there cannot be one."""
        try:
            ensure(table is not None, f"The changes of lane {run.lane.id} came without their table.")
            plan = self._catalog.plan(run.lane, cast("TableSpec", table), columns)
            refuse_other_rule(run.lane, run.rule, plan.rule)
        except Exception as error:
            self._shared.lanes.suspend(run, problem_of(error), error)
            return []
        run.rule = plan.rule
        return [plan]

    def _keep_rejects(self, run: LaneRun, taken: Taken[F], chunk: Chunk[F]) -> bool:
        """What has no place in the lane is durable in the dead letters before anything moves past it; False when the lane
        has stopped there."""
        if taken.rejects is not None:
            lane, raw = run.lane, Frames(chunk.raw)
            rejects = self._shared.rejects
            kept = rejects.keep(taken.rejects, raw, stage="shape", source=lane.source, table=lane.table, lane=lane.id)
            rejects.tally(one.kind for one in kept)
            if lane.stops:
                stop = stopped_by(self._engine.rejected(taken.rejects, raw)[0])
                self._shared.lanes.suspend(run, problem_of(stop), stop)
                return False
        return True

    def _fold(self, frame: F, taken: Taken[F], plan: ApplyPlan) -> Sequence[Folded[F]]:
        """The pieces folded, the last of them with what the others do not account for."""
        folded = [self._engine.fold(piece.frame, plan) for piece in taken.pieces if piece.frame is not None]
        changes = self._engine.count(frame)
        accounted = sum(piece.rows + piece.counts.total for piece in folded) + taken.counts.total
        ensure(changes == accounted, f"Of {changes} changes of {plan.table.name} the fold accounts for {accounted}.")
        return [*folded[:-1], replace(folded[-1], counts=folded[-1].counts + taken.counts)]

    def _written(
        self, run: LaneRun, plan: ApplyPlan, folded: Folded[F], chunk: Chunk[F], identity: Identity
    ) -> list[Handed[F]]:
        span = _span(Position({**chunk.start, **run.sent}), chunk.end)
        if not span or not (folded.rows or folded.counts.total):
            run.handed = run.handed.advanced_to(chunk.end)
            return []
        write = Write(run.lane, plan, folded, span, identity)
        return [self._handed(run, write, chunk.end, chunk.raw, chunk.size)]

    def _handed(
        self, run: LaneRun, write: Write[F], end: Mapping[TopicPartition, int], raw: tuple[Records[F], ...], size: int
    ) -> Handed[F]:
        run.handed = run.handed.advanced_to(end)
        run.sent = run.sent.advanced_to(write.span.end)
        write = replace(write, at=self._shared.now())
        return Handed(run, write, run.placed, raw, size + write.folded.size)

    def _within(self, batch: Batch[F], span: Span) -> F:
        return batch.frame if span == batch.span else self._engine.within(batch.frame, span)


def covered(span: Span, topics: Iterable[str]) -> Span:
    """The part of a span that lies in `topics`."""
    wanted = set(topics)
    return span.only(p for p in span.end if p.topic in wanted)


def only_topics(identity: Identity, partitions: Iterable[TopicPartition]) -> dict[str, str]:
    """The identities of the topics of `partitions`."""
    wanted = {p.topic for p in partitions}
    return {topic: known for topic, known in identity.items() if topic in wanted}


def _span(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Span:
    """The span from `start` to `end`, without partitions in which it is empty."""
    parts = {p: o for p, o in end.items() if start.get(p, o) < o}
    return Span(Position({p: start[p] for p in parts}), Position(parts))
