"""A source with the journal of its backfills: lanes see both as one stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Generic

from replicator.application.lane_runs import Clock, monotonic
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Batch, F, Stop
from replicator.ports.source import BACKFILL_TOPICS, BackfillJournal, Source, SourceFeatures

LOOK_SECONDS = 1.0
"""Seconds between two checks for new records in the journal."""

ApplyBatch = Callable[[Batch[F]], None]


class BackfilledSource(Generic[F]):
    """`Source` with the topics of `main` and of the journal.

    Neither waits for the other: their changes are ordered by sequence, not by arrival.
    """

    def __init__(self, main: Source[F], journal: BackfillJournal[F], clock: Clock = monotonic) -> None:
        self._main = main
        self._journal = journal
        self._clock = clock

    @property
    def features(self) -> SourceFeatures:
        """The features of the stream; only the journal has rows that were read outside its transactions."""
        return replace(self._main.features, get_concurrent_time=self._journal.get_newest_time)

    def run(self, start: Position, apply_batch: ApplyBatch[F], stop: Stop, *, once: bool) -> None:
        """See `Source`. The journal is read after batches of the stream, which arrive at least every second."""
        mine, others = self._split_position(start)
        journal_reader = _JournalReader(self._journal, mine, apply_batch, stop, self._clock)
        until = self._journal.span().end if once else None
        journal_reader.read()

        def both(batch: Batch[F]) -> None:
            apply_batch(batch)
            journal_reader.read_when_due(until)

        self._main.run(others, both, stop, once=once)

    def read(self, start: Position, until: Position, apply_batch: ApplyBatch[F], stop: Stop) -> None:
        from_mine, from_others = self._split_position(start)
        to_mine, to_others = self._split_position(until)
        if to_others:
            self._main.read(from_others, to_others, apply_batch, stop)
        if to_mine and not stop.is_set():
            self._journal.read(from_mine, to_mine, apply_batch, stop)

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        """Losses of the stream. The journal loses nothing: a newer backfill replaces its records."""
        others = self._split_position(position)[1]
        return self._main.losses(others, {t: known for t, known in identity.items() if not _is_backfilled(t)})

    def start(self) -> Position:
        """See `Source`. Lanes without a position start with the whole journal, wherever they start in the stream."""
        return Position({**self._main.start(), **self._journal.span().start})

    def beginning(self) -> Position:
        return Position({**self._main.beginning(), **self._journal.span().start})

    def end(self) -> Position:
        return Position({**self._main.end(), **self._journal.span().end})

    def committed(self, position: Position) -> None:
        self._main.committed(self._split_position(position)[1])

    def close(self) -> None:
        self._main.close()

    def _split_position(self, position: Position) -> tuple[Position, Position]:
        """The position in the journal, and the position in the stream."""
        mine = position.only(p for p in position if _is_backfilled(p.topic))
        return mine, position.only(p for p in position if p not in mine)


def _is_backfilled(topic: str) -> bool:
    return topic.startswith(BACKFILL_TOPICS)


class _JournalReader(Generic[F]):
    """Reads the journal between batches of the stream."""

    def __init__(
        self, journal: BackfillJournal[F], at: Position, apply_batch: ApplyBatch[F], stop: Stop, clock: Clock
    ) -> None:
        self._journal = journal
        self._at = at
        self._apply = apply_batch
        self._stop = stop
        self._clock = clock
        self._looked = clock()

    def read_when_due(self, until: Position | None) -> None:
        """Read new records if a check is due, up to `until` at most."""
        if self._clock() - self._looked >= LOOK_SECONDS:
            self.read(until)
            self._looked = self._clock()

    def read(self, until: Position | None = None) -> None:
        """Read all new records, up to `until` at most."""
        stored = self._journal.span()
        end = stored.end if until is None else stored.end.only(until)
        unread = Position({p: o for p, o in end.items() if self._at.get(p, -1) < o})
        if unread and not self._stop.is_set():
            start = Position({p: self._at.get(p, stored.start[p]) for p in unread})
            self._journal.read(start, unread, self._apply_batch, self._stop)

    def _apply_batch(self, batch: Batch[F]) -> None:
        self._apply(batch)
        self._at = self._at.advanced_to(batch.span.end)
