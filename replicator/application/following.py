"""Saying up to which transaction the lanes of a source are complete, where they are not held together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from replicator.domain.position import Position
from replicator.domain.transactions import Complete
from replicator.ports.backfill import TOPICS
from replicator.ports.decoder import Decoder
from replicator.ports.frames import Batch, F

from .alignment import Aligner, Alignment
from .lanes import LaneRun
from .proofs import Proofs
from .roster import Place, Roster
from .rules import TransactionRules
from .shared import Shared

AGAIN = 1_000
"""How many records of each partition are read again at a start, and counted: a transaction that was not complete at the end
of the last run is proven by what had come of it. Lanes leave out what they have."""


class Follower(Aligner[F]):
    """An aligner that hands on every change at once. What is complete is never exact: parts of later transactions may be
    visible.

    Of the topic of transactions a table is handed no more than what `proofs.Proofs` says is complete: so a position in it
    says the same as with lanes that are held together.
    """

    def __init__(
        self, rules: TransactionRules, place: Place[F], decoder: Decoder, roster: Roster[F], shared: Shared[F]
    ) -> None:
        super().__init__(rules, place, decoder, roster, shared)
        self._proofs = Proofs(rules.patience, self)

    @property
    def shown(self) -> Alignment:
        """The state now."""
        last = self._proofs.last
        ended_at = last.at.isoformat() if last and last.at else None
        return Alignment(last.name if last else None, ended_at, exact=False, held_bytes=0, given_up=0)

    @property
    def held_back(self) -> None:
        """Nothing is."""
        return None

    def begin(self, start: Position, usual: Position, end: Position) -> Position:
        """See `Aligner.begin`; lower by `AGAIN` records where lanes have applied any."""
        found, beginning = super().begin(start, usual, end), self._place.source.beginning()
        applied = {p for run in self._roster.runs() for p in run.applied if not p.topic.startswith(TOPICS)}
        applied = {p for p in applied if not self._is_told(p)}
        lower = {p: max(o - AGAIN, min(o, beginning.get(p, o))) for p, o in found.only(applied).items()}
        return Position({**found, **lower})

    def _begin_with(self, runs: Sequence[LaneRun], told: Mapping[str, Position]) -> None:
        passed, before = Position(), any(run.applied for run in runs)
        for run in runs:
            passed = passed.advanced_to(self._told(run.applied))
        unknown = any(run.applied and not told[run.lane.id] for run in runs)
        self._proofs = Proofs(self._rules.patience, self, passed)
        if before:
            self._proofs.doubt(self.end)
        if unknown:
            self._proofs.begin_at(self.end, self._clock())

    def is_copied(self, table: str) -> bool:
        """See `proofs.Copied`."""
        rules = self._place.rules_for(table)
        return bool(self._roster.tables.get(table)) or (rules is not None and bool(rules.lanes))

    def asked(self, end: Position) -> None:
        """The stream was asked where it ends."""
        super().asked(end)
        self._proofs.asked(end, self._clock())

    def seen(self, table: str) -> Callable[[F], None]:
        """Takes every decoded record of a batch."""
        return lambda changes: self._parts.extend(self._engine.exact_parts(changes, table))

    def read_beside(self, table: str) -> None:
        """Nothing is counted: nothing waits for what cannot be proven, and after a start it is read again."""

    def turn(self, position: Position, batch: Batch[F] | None = None) -> None:
        """After a batch was decoded, or while none came. `position`: what was read."""
        self._read = position
        marks = self._engine.marks(batch.frame, self._rules.topic, self._decoder) if batch else ()
        self._proofs.see(marks, self._parts, self._clock())
        self._parts = []
        self._proofs.turn(position)
        self.barrier = self._proofs.barrier

    def _complete(self, sink: str) -> Complete | None:
        behind, _ = self._behind(sink)
        last = self._proofs.last
        if behind:
            return Complete(self._place.name, behind=behind)
        # Before anything is known, what was published stays true.
        return Complete(self._place.name, last.name, last.at) if last else None
