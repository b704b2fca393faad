"""The port to metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from replicator.domain.policy.plan import Counts

from .dead_letters import DeadLetterGroup


@dataclass(frozen=True, slots=True)
class Pace:
    """How a stream that an engine runs by itself gets on. `batch_seconds`: what its last batch took; rows per second that
    came in and that were applied, 0 while none come; `lag_records` between that batch and the stream's end, None when
    unknown."""

    batch_seconds: float
    input_rows_per_second: float
    processed_rows_per_second: float
    lag_records: int | None

    def to_text(self, source: str) -> str:
        """A line for people."""
        rates = f"{self.input_rows_per_second:,.0f} rows/s in, {self.processed_rows_per_second:,.0f} rows/s applied"
        behind = "" if self.lag_records is None else f", {self.lag_records:,} records behind"
        return f"source {source}: the last batch took {self.batch_seconds:.1f} s, {rates}{behind}"


class HasPace(Protocol):
    """A source that reads by such a stream."""

    engine: str
    """The engine's name, as in `engine` of the config."""

    def pace(self) -> Pace | None:
        """How the stream gets on; None before its first batch has ended. From any thread."""


class Telemetry(Protocol):
    """Counts and gauges by name of source and lane, never by key or offset. Never raises, never blocks."""

    def consumed(self, source: str, records: int) -> None:
        """Records read from a source."""

    def ignored(self, source: str, kind: str, records: int) -> None:
        """Records that carry no change of a table."""

    def rejected(self, source: str, table: str, stage: str, code: str, records: int) -> None:
        """Records that were rejected; `table` is empty where it is not known. The application bounds how many tables and
        codes there are."""

    def dead_letters(self, counts: Mapping[DeadLetterGroup, int]) -> None:
        """How many dead letters are open by now; groups that are not named have none."""

    def changes(self, lane: str, counts: Counts) -> None:
        """What became of changes in a lane."""

    def applied(self, lane: str, seconds: float, newest: int | None) -> None:
        """One apply of a lane took `seconds`; `newest` is the greatest event time in it, microseconds since 1970."""

    def lag(self, source: str, records: int | None) -> None:
        """Records between the lowest lane and the end of the source; None where that is not known."""

    def lane_up(self, lane: str, up: bool) -> None:
        """A lane runs, or is suspended or paused."""

    def pace(self, source: str, engine: str, pace: Pace) -> None:
        """How the stream of a source gets on."""
