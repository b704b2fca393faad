"""Progress of a source, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from replicator.application.lane_runs import LaneRun
from replicator.application.transactions.barrier import TransactionProgress
from replicator.domain.position import Position, TopicPartition
from replicator.domain.transactions import RowLoss
from replicator.ports.source import Pace


@dataclass(frozen=True, slots=True)
class SourceOutage:
    """An outage of a source. `since`: on the clock. `answers`: the source answers, but cannot read some partition."""

    since: float
    sentence: str
    answers: bool = False


@dataclass(frozen=True, slots=True)
class SourceCall:
    """A call of a source that the pipeline waits for. `since`: on the clock."""

    doing: str
    since: float


@dataclass
class SourceProgress:
    """The progress of a source, for people. Its pipeline also counts its waits by `call` and `outage`.

    - `ignored`: per kind, the `records` without a change for any lane.
    - `end`: the end of the stream, as last read.
    - `outage`: set while the source does not answer, or fails in part.
    - `call`: set while the pipeline waits for the source.
    - `pace`: set if an engine runs the stream.
    - `transaction_progress`: set if the lanes follow transactions.
    - `row_loss`: set if the connector may lose rows before it sends them.
    - `unmatched`: `SourceFeatures.unmatched` of a source without any topic at the end of its stream.
    - `absent`, `damaged`: the same for files, `SourceFeatures.files`.
    - `excluded`: by sink, the topics that its event log skips.
    - `is_sparse`: see `ports.source.SourceFeatures.sparse_offsets`.
    - `transactions`: the transaction topic; None if the lanes do not follow transactions.
    """

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
        """The position of a lane in the topics that it reads.

        A table lane applies no rows of the transaction topic, and does not commit for it alone. For that topic,
        its position in the queue counts.
        """
        position = Position({**run.begin, **run.applied})
        if not run.is_event_log:
            return position.advanced_to({p: o for p, o in run.processed_to.items() if p.topic == self.transactions})
        excluded = self.excluded.get(run.lane.sink, frozenset())
        return position.only(p for p in position if p.topic not in excluded)

    def find_lowest_lag(self, runs: Iterable[LaneRun]) -> int | None:
        """The lag of the lowest of these lanes. For partitions without a lane position, the read position counts."""
        lowest = Position.lowest([self.get_position(run) for run in runs])
        return self.count_lag(Position({**self.position, **lowest}))

    def count_lag(self, position: Mapping[TopicPartition, int]) -> int | None:
        """The records from `position` to the end, in the partitions of both.

        None if records are left and offsets are sparse.
        """
        lag = sum(max(0, self.end[p] - offset) for p, offset in position.items() if p in self.end)
        return None if lag and self.is_sparse else lag
