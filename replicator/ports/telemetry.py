"""The port to metrics."""

from __future__ import annotations

from typing import Protocol

from replicator.domain.plan import Counts


class Telemetry(Protocol):
    """Counts and gauges by name of source and lane, never by key or offset. Never raises, never blocks."""

    def consumed(self, source: str, records: int) -> None:
        """Records read from a source."""

    def ignored(self, source: str, kind: str, records: int) -> None:
        """Records that carry no change of a table."""

    def changes(self, lane: str, counts: Counts) -> None:
        """What became of changes in a lane."""

    def applied(self, lane: str, seconds: float, newest: int | None) -> None:
        """One apply of a lane took `seconds`; `newest` is the greatest event time in it, microseconds since 1970."""

    def lag(self, source: str, records: int) -> None:
        """Records between the lowest lane and the end of the source."""

    def lane_up(self, lane: str, up: bool) -> None:
        """A lane runs, or is suspended or paused."""
