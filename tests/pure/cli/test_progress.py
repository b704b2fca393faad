"""The progress line of the daemon."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from structlog.testing import capture_logs

from replicator.cli.progress import log_progress


class GivenStatus:
    """A status whose reports are given; sets `over` when the last one was asked for."""

    def __init__(self, *records_and_lag: tuple[int, int]) -> None:
        self.reports = list(records_and_lag)
        self.over = threading.Event()

    def report(self):
        records, lag = self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]
        if len(self.reports) == 1:
            self.asked = getattr(self, "asked", 0) + 1
            if self.asked > 2:
                self.over.set()
        lanes = [SimpleNamespace(id="lake.a", status="running"), SimpleNamespace(id="pg.a", status="retrying")]
        return SimpleNamespace(
            sources=[SimpleNamespace(name="shop", records=records, lag_records=lag, unread=lag)], lanes=lanes
        )


def lines(*reports: tuple[int, int]) -> list[dict]:
    told = GivenStatus(*reports)
    with capture_logs() as logs, log_progress(told, every=0.001):
        assert told.over.wait(10)
    return logs


def test_progress_line_while_there_is_work():
    first, second, third = lines((100, 50), (100, 50), (150, 0), (150, 0))
    assert first["event"] == "progress" and first["log_level"] == "info"
    assert (first["source"], first["records"], first["lag_records"]) == ("shop", 100, 50)
    assert first["records_per_second"] > 0 and first["behind"] == {"pg.a": "retrying"}
    assert second["records_per_second"] == 0 and second["lag_records"] == 50
    assert third["records"] == 150


def test_no_progress_line_without_work():
    assert lines((0, 0)) == []
