"""The port of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from replicator.domain.plain_values import format_count
from replicator.domain.policy.plan import Counts

from .dead_letters import DeadLetterGroup


@dataclass(frozen=True, slots=True)
class Pace:
    """The progress of a stream that an engine runs by itself. `batch_seconds` is the duration of its last batch. The
    rates are rows per second, 0 while there are none. `lag_records` is the distance of that batch from the stream's
    end, None if it is not known."""

    batch_seconds: float
    input_rows_per_second: float
    processed_rows_per_second: float
    lag_records: int | None

    def to_text(self, source: str) -> str:
        """One line for people."""
        rates = f"{self.input_rows_per_second:,.0f} rows/s in, {self.processed_rows_per_second:,.0f} rows/s applied"
        behind = "" if self.lag_records is None else f", {format_count(self.lag_records, 'record')} behind"
        return f"source {source}: the last batch took {self.batch_seconds:.1f} s, {rates}{behind}"


class Telemetry(Protocol):
    """Counters and gauges by name of source and lane, never by key or offset. Never raises, never blocks."""

    def consumed(self, source: str, records: int) -> None:
        """Count records read from a source."""

    def ignored(self, source: str, kind: str, records: int) -> None:
        """Count records that contain no change of a table."""

    def rejected(self, source: str, table: str, stage: str, code: str, records: int) -> None:
        """Count rejected records; `table` is empty if it is not known. The application limits the number of tables and
        codes."""

    def dead_letters(self, counts: Mapping[DeadLetterGroup, int]) -> None:
        """Set the number of open dead letters; groups that are not in `counts` have none."""

    def changes(self, lane: str, counts: Counts) -> None:
        """Count the changes of a lane by their outcome."""

    def applied(self, lane: str, seconds: float, newest: int | None) -> None:
        """One apply of a lane took `seconds`; `newest` is its greatest event time, in microseconds since 1970."""

    def lag(self, source: str, records: int | None) -> None:
        """Records between the lowest lane and the end of the source; None if it is not known."""

    def lane_up(self, lane: str, up: bool) -> None:
        """The lane runs, or else is suspended or paused."""

    def compared(self, lane: str, at: float, rows: Mapping[str, int]) -> None:
        """The last comparison of a target began `at` (seconds since 1970), and found `rows` that differ, by their kind."""

    def pace(self, source: str, engine: str, pace: Pace) -> None:
        """The progress of a source's stream."""
