"""Compares targets with their sources while the pipeline runs, on a separate thread, so that no lane waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import structlog

from replicator.application.problem import Stopped, to_problem
from replicator.domain.differences import LaneDiff
from replicator.ports.telemetry import Telemetry

from .diff_runs import StoredDiff, keep_run, list_runs, to_run

log = structlog.get_logger(__name__)

LOOK_SECONDS = 2.0
"""Seconds between two searches for due lanes."""
RETRY_AFTER = timedelta(hours=1)
"""The time after a failed comparison, if it is shorter than the interval of the lane."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class ScheduledDiff:
    """A lane that is compared `every` so often. `compare` reports its progress in sentences."""

    lane: str
    table: str
    every: timedelta
    compare: Callable[[Report], LaneDiff]


class DiffScheduler:
    """Compares the lanes that are due, one after the other. A failure is kept as the result, and stops nothing else.

    - `find`: the lanes that can be compared now. `folder`: the state folder with the runs.
    - `wanted`: False starts no thread.
    """

    def __init__(
        self,
        find: Callable[[], Sequence[ScheduledDiff]],
        folder: Path,
        telemetry: Telemetry,
        *,
        wanted: bool = True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._find, self._folder, self._telemetry, self._now = find, folder, telemetry, now
        self._wanted = wanted
        self._attempts: dict[str, datetime] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="comparisons", daemon=True)

    def start(self) -> None:
        """Start the thread, if comparisons are configured."""
        if self._wanted:
            self._thread.start()

    def end(self, seconds: float) -> None:
        """Start no more comparisons, and wait at most `seconds` for the running one. It ends early, and is not kept."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def compare_due(self) -> None:
        """Compare each lane that is due. Runs of other programs count, too."""
        for one in self._find():
            if self._ended.is_set():
                return
            # Two failed ones do not follow each other (`keep_run`).
            runs = list(islice(list_runs(self._folder, one.lane), 2))
            done = next((run for run in runs if run.error is None), None)
            if done is not None:
                self._telemetry.compared(one.lane, done.begun_at.timestamp(), done.count_rows())
            if self._is_due(one, runs[0] if runs else None):
                self._compare(one)

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self.compare_due()
            except Exception as error:
                log.error("targets are not compared", sentence=to_problem(error).sentence)
                self._ended.wait(RETRY_AFTER.total_seconds())

    def _is_due(self, one: ScheduledDiff, last: StoredDiff | None) -> bool:
        """True one interval after the last run. A time in the future was written under another clock."""
        wait = min(one.every, RETRY_AFTER) if last is not None and last.error else one.every
        times = [] if last is None else [last.begun_at]
        times += [self._attempts[one.lane]] if one.lane in self._attempts else []
        return not times or not timedelta(0) <= self._now() - max(times) < wait

    def _compare(self, one: ScheduledDiff) -> None:
        begun, started = self._now(), time.monotonic()
        # Also kept in memory: without it, a full disk would repeat the comparison at once.
        self._attempts[one.lane] = begun
        try:
            run = to_run(one.compare(self._report))
        except Stopped:
            return
        except Exception as error:
            problem, seconds = to_problem(error), round(time.monotonic() - started, 3)
            run = StoredDiff(
                one.lane, one.table, begun.isoformat(), seconds, error=problem.sentence, next_step=problem.next_step or None
            )
            log.warning("lane was not compared", lane=one.lane, sentence=run.error, next_step=run.next_step)
        else:
            self._telemetry.compared(one.lane, run.begun_at.timestamp(), run.count_rows())
            (log.info if run.equal else log.warning)("lane compared", lane=one.lane, rows=run.rows, **run.count_rows())
        try:
            keep_run(self._folder, run)
        except OSError as error:
            log.warning("comparison was not kept", lane=one.lane, sentence=f"{error.filename}: {error.strerror}.")

    def _report(self, sentence: str) -> None:
        """Ends the running comparison at shutdown."""
        if self._ended.is_set():
            raise Stopped
        log.debug("comparison", sentence=sentence)
