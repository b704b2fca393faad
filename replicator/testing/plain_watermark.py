"""The watermark, change by change over dicts. `FakeSink` checks it before it applies a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from replicator.domain.change import OP, PARTITION, TOPIC, TS, Op, sequence_columns
from replicator.domain.policy.plan import ApplyPlan, LaneState, is_counting_copies
from replicator.domain.policy.watermark import make_late_reject
from replicator.domain.position import Span, TopicPartition
from replicator.domain.sequence import Sequence

from .plain_plan import DUPLICATE, Verdict, to_plain
from .value_types import EPOCH, to_micros


@dataclass
class PlainWatermark:
    """The watermark for the changes of one write. `seen`: the identities that passed."""

    plan: ApplyPlan
    lane: str
    max_event_times: dict[TopicPartition, int]
    counted: bool
    seen: set[tuple[Any, ...]] = field(default_factory=set)
    copies: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    last: Sequence = ()

    @classmethod
    def from_state(cls, plan: ApplyPlan, lane: str, state: LaneState, span: Span) -> PlainWatermark:
        """For the changes of `span` that are not in `state`."""
        return cls(plan, lane, dict(state.max_event_time), is_counting_copies(plan, state, span))

    def verdict(self, change: Mapping[str, Any]) -> Verdict | None:
        """Why the change does not pass; None if it passes, and always without a watermark."""
        if self.plan.watermark is None:
            return None
        mark = self._advance(change)
        if mark is not None and change[TS] < mark:
            return Verdict("rejected", make_late_reject(_to_text(change[TS]), _to_text(mark), self.lane))
        identity = self._get_identity(change)
        known = identity in self.seen
        self.seen.add(identity)
        return DUPLICATE if known else None

    def _advance(self, change: Mapping[str, Any]) -> datetime | None:
        """The watermark at the arrival of the change; None if it does not apply. Advances the newest event time."""
        if change[TS] is None or change[OP] == Op.READ:
            return None
        place, time = TopicPartition(change[TOPIC], change[PARTITION]), to_micros(change[TS])
        newest = self.max_event_times.get(place, time)
        self.max_event_times[place] = max(newest, time)
        return EPOCH + timedelta(microseconds=newest) - (self.plan.watermark or timedelta())

    def _get_identity(self, change: Mapping[str, Any]) -> tuple[Any, ...]:
        table = self.plan.table
        values = tuple(to_plain(change[name]) for name in table.keys or table.column_names)
        sequence = tuple(change[name] for name in sequence_columns(table.sequence))
        if not self.counted:
            return (*values, *sequence)
        if sequence <= self.last:
            self.copies.clear()
        self.last = sequence
        alike = (*values, *sequence[:-1])
        self.copies[alike] += 1
        return (*alike, self.copies[alike])


def _to_text(time: datetime) -> str:
    return str(time.replace(tzinfo=None))
