"""The transaction tracker: computes the completeness watermark of lanes that do not wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from replicator.application.lane_registry import LaneRegistry, SourceContext
from replicator.application.lane_runs import LaneRun
from replicator.application.runtime_context import RuntimeContext
from replicator.domain.position import Position
from replicator.domain.transactions import CompletenessWatermark
from replicator.ports.components import TransactionRules
from replicator.ports.decoder import Decoder
from replicator.ports.frames import Batch, F
from replicator.ports.source import BACKFILL_TOPICS

from .barrier import TransactionBarrier, TransactionProgress
from .completeness_evidence import CompletenessEvidence

REREAD_RECORDS = 1_000
"""Records of each partition that are read and counted again at a start.

They prove transactions that were incomplete at the end of the last run. Lanes skip records that they have
applied.
"""


class TransactionTracker(TransactionBarrier[F]):
    """A `TransactionBarrier` that releases every change at once. Its watermark is never exact: parts of later
    transactions may be visible.

    A table's lane gets the transaction topic only as far as `completeness_evidence.CompletenessEvidence` proves
    complete. So a position in that topic means the same as with a barrier.
    """

    def __init__(
        self,
        rules: TransactionRules,
        context: SourceContext[F],
        decoder: Decoder,
        registry: LaneRegistry[F],
        shared: RuntimeContext[F],
    ) -> None:
        super().__init__(rules, context, decoder, registry, shared)
        self._evidence = CompletenessEvidence(rules.patience, self)

    @property
    def progress(self) -> TransactionProgress:
        """The progress now."""
        last = self._evidence.last_proven
        ended_at = last.at.isoformat() if last and last.at else None
        return TransactionProgress(last.name if last else None, ended_at, exact=False, held_bytes=0, given_up=0)

    @property
    def held_back_problem(self) -> None:
        """None: nothing is held back."""
        return None

    def find_start(self, start: Position, usual: Position, read_end: Callable[[], Position]) -> Position:
        """See `TransactionBarrier.find_start`; lower by `REREAD_RECORDS` records in partitions that lanes have
        applied."""
        found, beginning = super().find_start(start, usual, read_end), self._context.source.beginning()
        applied = {p for run in self._registry.list_runs() for p in run.applied if not p.topic.startswith(BACKFILL_TOPICS)}
        applied = {p for p in applied if not self._is_transaction_topic(p)}
        lower = {p: max(o - REREAD_RECORDS, min(o, beginning.get(p, o))) for p, o in found.only(applied).items()}
        return Position({**found, **lower})

    def _start_tracking(self, runs: Sequence[LaneRun], passed_marks: Mapping[str, Position]) -> None:
        passed, before = Position(), any(run.applied for run in runs)
        for run in runs:
            passed = passed.advanced_to(self._select_transaction_topic(run.applied))
        unknown = any(run.applied and not passed_marks[run.lane.id] for run in runs)
        self._evidence = CompletenessEvidence(self._rules.patience, self, passed)
        if before:
            self._evidence.doubt_until(self.end)
        if unknown:
            self._evidence.begin_at(self.end, self._clock())

    def is_copied(self, table: str) -> bool:
        rules = self._context.rules_for(table)
        return bool(self._registry.tables.get(table)) or (rules is not None and bool(rules.lanes))

    def set_end(self, end: Position) -> None:
        """Set the end of the stream."""
        super().set_end(end)
        self._evidence.set_end(end, self._clock())

    def count_changes(self, table: str) -> Callable[[F], None]:
        """A consumer of every decoded record of a batch."""
        return lambda changes: self._parts.extend(self._tracking.exact_parts(changes, table))

    def observe_catch_up(self, table: str) -> None:
        """Count nothing: no change waits for a proof, and after a start the records are read again."""

    def advance(self, position: Position, batch: Batch[F] | None = None) -> None:
        """Update the watermark, after a batch was decoded or while none arrives.

        `position`: the stream was read up to here.
        """
        self._read = position
        marks = self._tracking.marks(batch.frame, self._rules.topic, self._decoder) if batch else ()
        self._evidence.observe(marks, self._parts, self._clock())
        self._parts = []
        self._evidence.advance(position)
        self.hold_from = self._evidence.barrier

    def _find_complete(self, sink: str) -> CompletenessWatermark | None:
        behind, _ = self._find_behind(sink)
        last = self._evidence.last_proven
        if behind:
            return CompletenessWatermark(self._context.name, behind=behind)
        # Without a proof yet, the watermark published last stays true.
        return CompletenessWatermark(self._context.name, last.name, last.at) if last else None
