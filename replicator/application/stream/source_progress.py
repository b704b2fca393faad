"""What a source has brought, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from replicator.application.lane_runs import LaneRun
from replicator.application.transactions.barrier import TransactionProgress
from replicator.domain.connectors import RowLoss
from replicator.domain.position import Position, TopicPartition
from replicator.ports.telemetry import Pace


@dataclass(frozen=True, slots=True)
class SourceOutage:
    """A source that does not answer, or (`answers`) that cannot read some partition: since when, on the clock, and why."""

    since: float
    sentence: str
    answers: bool = False


@dataclass(frozen=True, slots=True)
class SourceCall:
    """What a source is waited for, and since when, on the clock."""

    doing: str
    since: float


@dataclass
class SourceProgress:
    """What a source has brought so far, for people. `ignored`: how many of its `records` carry no change of a table that
    some lane has, by kind. `end` is where its stream ended when last asked; `outage` is set while it does not answer or
    fails in part, `call` while the pipeline waits for it; `pace` where an engine runs the stream; `transaction_progress`
    where lanes are held together at transactions. `unmatched`: `NamesTopics.unmatched` of a source that had no topic at
    all when it was read to its end; `absent`, `damaged`: likewise, of `NamesFiles`. `excluded`: the topics that an event
    log does not read, by sink. `is_sparse`: see `ports.source.Source.has_sparse_offsets`. `row_loss` where what sends the
    records may lose some before. `transactions`: the topic in which their ends are told, where lanes follow them."""

    records: int = 0
    ignored: Counter[str] = field(default_factory=Counter)
    position: Position = field(default_factory=Position)
    end: Position = field(default_factory=Position)
    began: float = 0.0
    outage: SourceOutage | None = None
    pace: Pace | None = None
    call: SourceCall | None = None
    transaction_progress: TransactionProgress | None = None
    row_loss: RowLoss | None = None
    unmatched: Mapping[str, Sequence[str]] = field(default_factory=dict)
    absent: str = ""
    damaged: Sequence[str] = ()
    excluded: Mapping[str, frozenset[str]] = field(default_factory=dict)
    is_sparse: bool = False
    transactions: str | None = None

    def get_position(self, run: LaneRun) -> Position:
        """How far a lane has got in the topics that it reads. Of the topic of transactions the lane of a table has
        nothing to apply, and does not write for it alone: how far it was handed over counts there."""
        position = Position({**run.begin, **run.applied})
        if not run.is_event_log:
            return position.advanced_to({p: o for p, o in run.handed_over.items() if p.topic == self.transactions})
        excluded = self.excluded.get(run.lane.sink, frozenset())
        return position.only(p for p in position if p.topic not in excluded)

    def find_lowest_lag(self, runs: Iterable[LaneRun]) -> int | None:
        """`count_lag` of the lowest of these lanes; of partitions that none of them knows, of what was read."""
        lowest = Position.lowest([self.get_position(run) for run in runs])
        return self.count_lag(Position({**self.position, **lowest}))

    def count_lag(self, position: Mapping[TopicPartition, int]) -> int | None:
        """The records from `position` to the end, over the partitions that both know; None where offsets do not tell."""
        left = sum(max(0, self.end[p] - offset) for p, offset in position.items() if p in self.end)
        return None if left and self.is_sparse else left
