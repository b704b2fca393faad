"""The last comparison of each lane, in `status` and on the status page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from adapters.http.status_page import render
from replicator.application.operations.diff_runs import StoredDiff, keep_run, report_runs
from replicator.cli.diff_report import format_age
from replicator.cli.status import _make_view

NOW = datetime.now(UTC)


def test_status_has_a_line_for_each_lane(tmp_path):
    begun = (NOW - timedelta(hours=3, minutes=5)).isoformat()
    keep_run(tmp_path, StoredDiff("lake.a", "t", begun, 1.0, rows=5))
    keep_run(tmp_path, StoredDiff("lake.b", "t", begun, 1.0, missing=1, different=1))
    keep_run(tmp_path, StoredDiff("lake.c", "t", begun, 1.0, error="The <source> does not answer.", next_step="Start it."))
    report = {
        "pipeline": "shop",
        "running": True,
        "sources": [],
        "lanes": [],
        "comparisons": report_runs(tmp_path, ["lake.a", "lake.b", "lake.c", "lake.d"]),
    }
    lines = _make_view(report, 1000).plain.splitlines()
    assert lines[-5:] == [
        "",
        "lake.a: compared 3 h ago: equal",
        "lake.b: compared 3 h ago: 2 rows differ (1 missing, 1 different)",
        "lake.c: not compared 3 h ago: The <source> does not answer.",
        "  Start it.",
    ]
    page = render(report)
    assert "lake.a" not in page and "lake.b, compared" in page and "2 rows different" in page
    assert "The &lt;source&gt; does not answer." in page


@pytest.mark.parametrize(
    ("age", "text"),
    [
        ({"seconds": -5}, "0 s ago"),
        ({"seconds": 59}, "59 s ago"),
        ({"minutes": 59}, "59 min ago"),
        ({"hours": 47}, "47 h ago"),
        ({"days": 2}, "2 days ago"),
    ],
)
def test_ages(age, text):
    assert format_age((NOW - timedelta(**age)).isoformat(), NOW) == text
