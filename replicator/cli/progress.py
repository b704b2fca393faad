"""Progress of the daemon, in the log: a line per source while there are records to read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import structlog

log = structlog.get_logger(__name__)
EVERY_SECONDS = 10.0


class Reporting(Protocol):
    """Gives reports, from any thread."""

    def report(self) -> Any:
        """An `application.operations.status.Report`."""


@contextmanager
def log_progress(status: Reporting, every: float = EVERY_SECONDS) -> Iterator[None]:
    """While the block runs, log after each `every` seconds, and at the end, what each source has read since the last line.
    Logs nothing for a source without new or unread records."""
    ended = threading.Event()
    thread = threading.Thread(target=_log_every, args=(status, every, ended), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _log_every(status: Reporting, every: float, ended: threading.Event) -> None:
    before: dict[str, int] = {}
    at = time.monotonic()
    while not ended.wait(every):
        report, now = status.report(), time.monotonic()
        for source in report.sources:
            new = source.records - before.get(source.name, 0)
            if new or source.unread:
                _log_line(source, new / (now - at), report.lanes)
            before[source.name] = source.records
        at = now


def _log_line(source: Any, rate: float, lanes: Any) -> None:
    """One line. `behind` names the lanes that do not keep up, with their states."""
    behind = {lane.id: lane.status for lane in lanes if lane.status != "running"}
    log.info(
        "progress",
        source=source.name,
        records=source.records,
        records_per_second=round(rate),
        lag_records=source.lag_records,
        **({"behind": behind} if behind else {}),
    )
