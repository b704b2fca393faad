"""What a source has brought, for people."""

from __future__ import annotations

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
    """What a source has brought so far, for people. `end` is where its stream ended when last asked; `away` is set while it
    does not answer; `pace` where an engine runs the stream; `alignment` where lanes are held together at transactions;
    `row_loss` where what sends the records may lose some before."""

    records: int = 0
    position: Position = field(default_factory=Position)
    end: Position = field(default_factory=Position)
    began: float = 0.0
    away: Away | None = None
    pace: Pace | None = None
    alignment: Alignment | None = None
    row_loss: RowLoss | None = None
