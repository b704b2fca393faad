"""What a source has brought, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from replicator.domain.connectors import RowLoss
from replicator.domain.position import Position
from replicator.ports.telemetry import Pace

from .alignment import Alignment


@dataclass(frozen=True, slots=True)
class Away:
    """A source that does not answer: since when, on the clock, and why."""

    since: float
    sentence: str


@dataclass
class Flow:
    """What a source has brought so far, for people. `ignored`: how many of its `records` carry no change of a table that
    some lane has, by kind. `end` is where its stream ended when last asked; `away` is set while it does not answer; `pace`
    where an engine runs the stream; `alignment` where lanes are held together at transactions. `unmatched`:
    `NamesTopics.unmatched` of a source that had no topic at all when it was read to its end. `row_loss` where what sends
    the records may lose some before."""

    records: int = 0
    ignored: Counter[str] = field(default_factory=Counter)
    position: Position = field(default_factory=Position)
    end: Position = field(default_factory=Position)
    began: float = 0.0
    away: Away | None = None
    pace: Pace | None = None
    alignment: Alignment | None = None
    row_loss: RowLoss | None = None
    unmatched: Mapping[str, Sequence[str]] = field(default_factory=dict)
