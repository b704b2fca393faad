"""`watermark`: levels, values and refusals."""

from __future__ import annotations

from datetime import timedelta

import pytest

from replicator.wiring import adapters

APPEND = "    policy: append\n"
"""The last line of tables[2], whose one entry inherits it."""


@pytest.mark.parametrize(
    "said", ["10", "10 parsecs", "ten minutes", "-1 seconds", "10minutes", "1.5 hours", "12345678 days", "[]", "{}", "true"]
)
def test_invalid_duration_is_refused(folder, said):
    line = folder.change(APPEND, f"{APPEND}    watermark: {said}\n")
    finding = folder.only()
    assert (finding.code, finding.line) == ("duration", line)
    assert "such as 30 seconds" in finding.message


def test_invalid_trigger_is_refused(folder):
    line = folder.change("    topics:", "    trigger: soon\n    topics:")
    finding = folder.only()
    assert (finding.code, finding.line) == ("duration", line)
    folder.write(folder.file.read_text().replace("soon", "30 seconds"))
    assert folder.load().settings.sources["shop"].trigger == "30 seconds"


def test_other_policies_refuse_it(folder):
    """In an entry, in an event log's entry, in a table no entry of which appends, and in the defaults of such tables."""
    for old, indent in (("        into: orders_now\n", 8), ("      - sink: raw\n", 8), ("    keys: [id]\n", 4)):
        line = folder.change(old, f"{old}{' ' * indent}watermark: 10 minutes\n")
        finding = folder.only()
        assert (finding.code, finding.line, finding.suggestion) == ("inapplicable", line, "remove it"), str(finding)
        assert "key 'watermark' in tables[" in finding.message
    folder.change(APPEND, "")
    with pytest.raises(Exception, match="key 'watermark' in defaults means nothing"):
        folder.load(overrides=["defaults.watermark=10 minutes"])


def test_nearest_level_wins(folder):
    assert all(lane.watermark is None for lane in folder.load().settings.resolve_lanes("audit.log"))
    folder.change("        stored_as_scd_type: 1", "        policy: append")
    loaded = folder.load(overrides=["defaults.watermark=1 hour"])
    mirror, lake = loaded.settings.resolve_lanes("public.orders")
    assert (mirror.watermark, lake.watermark) == (None, timedelta(hours=1))
    assert adapters.build_lane(loaded, lake).watermark == timedelta(hours=1)
    for said, expected in (
        ("0 seconds", timedelta()),
        ("1 day", timedelta(days=1)),
        ("500 milliseconds", timedelta(0, 0.5)),
    ):
        loaded = folder.load(overrides=["defaults.watermark=1 hour", f"tables[2].watermark={said}"])
        assert [lane.watermark for lane in loaded.settings.resolve_lanes("audit.log")] == [expected]
