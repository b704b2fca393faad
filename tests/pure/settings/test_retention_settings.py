"""`tombstone_retention`: values, levels and refusals."""

from __future__ import annotations

from datetime import timedelta

import pytest

from replicator.wiring import adapters

KEYS = "    keys: [id]\n"
"""A line of tables[1], one of whose entries has policy scd1 by default."""


@pytest.mark.parametrize(
    "said", ["10", "0 days", "00 seconds", "a week", "-1 seconds", "1.5 hours", "on", "false", "[]", "{}"]
)
def test_invalid_duration_is_refused(folder, said):
    line = folder.change(KEYS, f"{KEYS}    tombstone_retention: {said}\n")
    finding = folder.only()
    assert (finding.code, finding.line) == ("duration", line)
    assert "such as 7 days" in finding.message


def test_other_policies_refuse_it(folder):
    """A history keeps its tombstones for ever, and `append` has none."""
    line = folder.change("    policy: append\n", "    policy: append\n    tombstone_retention: 3 days\n")
    finding = folder.only()
    assert (finding.code, finding.line, finding.suggestion) == ("inapplicable", line, "remove it")


def test_nearest_level_wins(folder):
    loaded = folder.load()
    assert {lane.retention for lane in loaded.settings.resolve_lanes("public.orders")} == {timedelta(days=7)}
    assert {lane.retention for lane in loaded.settings.resolve_lanes("audit.log")} == {None}
    for said, expected in (
        ("3 days", timedelta(days=3)),
        ("off", None),
        ('"off"', None),
        ("500 milliseconds", timedelta(0, 0.5)),
    ):
        loaded = folder.load(overrides=["defaults.tombstone_retention=1 hour", f"tables[1].tombstone_retention={said}"])
        found = [lane for lane in loaded.settings.resolve_lanes("public.orders") if lane.policy == "scd1"]
        assert {lane.retention for lane in found} == {expected}
        assert {adapters.build_lane(loaded, lane).retention for lane in found} == {expected}
    loaded = folder.load(overrides=["defaults.tombstone_retention=1 hour"])
    assert {lane.retention for lane in loaded.settings.resolve_lanes("public.orders")} == {timedelta(hours=1)}
