"""What a watermark lets in, change by change over dicts: what `FakeSink` asks before it applies a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from replicator.domain.change import OP, PARTITION, TOPIC, TS, Op, sequence_columns
from replicator.domain.plan import ApplyPlan, LaneState, copies_count
from replicator.domain.position import Span, TopicPartition
from replicator.domain.sequence import Sequence
from replicator.domain.watermark import late

from .kinds import EPOCH, micros
from .plain_plan import DUPLICATE, Verdict, plain


@dataclass
class PlainWatermark:
    """The changes of one write on their way into a lane. `seen`: those that were let in."""

    plan: ApplyPlan
    lane: str
    reached: dict[TopicPartition, int]
    counted: bool
    seen: set[tuple[Any, ...]] = field(default_factory=set)
    copies: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    last: Sequence = ()

    @classmethod
    def of(cls, plan: ApplyPlan, lane: str, state: LaneState, span: Span) -> PlainWatermark:
        """For the changes of `span` that are not in `state`."""
        return cls(plan, lane, dict(state.reached), copies_count(plan, state, span))

    def verdict(self, change: Mapping[str, Any]) -> Verdict | None:
        """Why the change is not let in; None when it is, and always without a watermark."""
        if self.plan.watermark is None:
            return None
        mark = self._passed(change)
        if mark is not None and change[TS] < mark:
            return Verdict("rejected", late(_text(change[TS]), _text(mark), self.lane))
        identity = self._identity(change)
        known = identity in self.seen
        self.seen.add(identity)
        return DUPLICATE if known else None

    def _passed(self, change: Mapping[str, Any]) -> datetime | None:
        """The watermark when the change arrived, None where it has nothing to do with it; moves the newest event time."""
        if change[TS] is None or change[OP] == Op.READ:
            return None
        place, time = TopicPartition(change[TOPIC], change[PARTITION]), micros(change[TS])
        newest = self.reached.get(place, time)
        self.reached[place] = max(newest, time)
        return EPOCH + timedelta(microseconds=newest) - (self.plan.watermark or timedelta())

    def _identity(self, change: Mapping[str, Any]) -> tuple[Any, ...]:
        table = self.plan.table
        values = tuple(plain(change[name]) for name in table.keys or table.column_names)
        sequence = tuple(change[name] for name in sequence_columns(table.sequence))
        if not self.counted:
            return (*values, *sequence)
        if sequence <= self.last:
            self.copies.clear()
        self.last = sequence
        alike = (*values, *sequence[:-1])
        self.copies[alike] += 1
        return (*alike, self.copies[alike])


def _text(time: datetime) -> str:
    return str(time.replace(tzinfo=None))
