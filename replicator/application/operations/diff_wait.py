"""Waits until the connector and a lane have passed the point of a snapshot."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from replicator.domain.errors import EnvironmentProblem, Fatal
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position, TopicPartition
from replicator.ports.comparison import SourceSnapshot
from replicator.ports.components import Components
from replicator.ports.frames import Lane
from replicator.ports.source import Source

from .diff_records import TableRecords

ASK_EVERY = 0.2
REPORT_EVERY = 2.0


@dataclass(frozen=True)
class DiffWait:
    """Waits at most `patience` seconds for each."""

    parts: Components
    source: Source[pa.Table]
    patience: float
    report: Callable[[str], None]

    def await_delivery(self, snapshot: SourceSnapshot) -> bool:
        """Return when the log contains every change that the snapshot contains. False if nothing shows it."""
        deadline = time.monotonic() + self.patience
        while (delivered := snapshot.is_delivered()) is False:
            if time.monotonic() > deadline:
                raise EnvironmentProblem(
                    f"The connector has not confirmed {snapshot.point} within {self.patience:.0f} s.",
                    next_step="See if it runs (`replicator doctor`). A connector without changes confirms its position only "
                    "with `heartbeat.interval.ms`. `--timeout` waits longer.",
                )
            time.sleep(ASK_EVERY)
        return bool(delivered)

    def await_lane(self, lane: Lane, end: Position, snapshot: SourceSnapshot, records: TableRecords) -> Fatal | None:
        """Return when the lane has applied the log up to `end`. For a lane that has stopped before: why."""
        started, has_daemon = time.monotonic(), self.parts.ask_daemon() is not None
        reported = started
        while behind := self._count_behind(lane, end, records):
            if time.monotonic() > reported + REPORT_EVERY:
                reported = time.monotonic()
                self.report(f"{lane.id}: {format_count(sum(behind.values()), 'record')} behind")
            if (halt := self._find_halt(lane)) is not None:
                return halt
            if not has_daemon:
                self.report(f"{lane.id}: it is behind, and no daemon runs: start it meanwhile")
                has_daemon = True
            if time.monotonic() > started + self.patience:
                raise EnvironmentProblem(
                    f"Lane {lane.id} has not passed {snapshot.point} within {self.patience:.0f} s. It is behind in "
                    f"{', '.join(sorted(map(str, behind)))}.",
                    next_step="Start the daemon if it does not run, or wait longer with `--timeout`.",
                )
            time.sleep(ASK_EVERY)
        return None

    def _count_behind(self, lane: Lane, end: Position, records: TableRecords) -> Mapping[TopicPartition, int]:
        """Per partition the records up to `end` that the daemon has not read, or that the lane has not applied."""
        status = self.parts.ask_daemon()
        for one in status["sources"] if status is not None else ():
            if one["name"] == lane.source:
                read = Position.from_json(one["position"])
                if unread := subtract(end, read):
                    return unread
        wanted = records.only_own(self.source, end)
        with closing(self.parts.open_sink(lane.sink)) as sink:
            state = sink.state(lane)
        return subtract(wanted, state.position if state is not None else Position())

    def _find_halt(self, lane: Lane) -> Fatal | None:
        """Why the daemon applies no changes of the lane; None if it does."""
        status = self.parts.ask_daemon()
        for one in status["lanes"] if status is not None else ():
            if one["id"] == lane.id and one["status"] in ("paused", "suspended"):
                return Fatal(
                    f"Lane {lane.id} is {one['status']}{': ' + one['error'] if one['error'] else '.'}",
                    next_step=one["next_step"] or f"`replicator lanes resume {lane.id}`.",
                )
        return None


def subtract(end: Position, position: Position) -> dict[TopicPartition, int]:
    """Per partition the offsets from `position` to `end`, where it is behind."""
    return {place: offset - position.get(place, 0) for place, offset in end.items() if position.get(place, 0) < offset}
