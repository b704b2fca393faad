"""A lane whose target was written under another rule: every command reports it before a run."""

from __future__ import annotations

import pytest

ENTRY = "{sink: lake}"


@pytest.mark.parametrize("said", ["policy: scd2", "deletes: soft", "where: id > 0", "keys: [id, customer_id]"])
def test_lane_written_under_another_rule_is_suspended_at_the_start(project, run_json, said):
    config = project / "config" / "replicator.yaml"
    text = config.read_text().replace("match: public.*", "match: public.orders")
    config.write_text(text.replace(ENTRY, f"{{sink: lake, {said}}}"))
    words = "Lane lake.orders contains rows written under"

    planned = {lane["lane"]: lane["problem"] for lane in run_json("plan")["result"]}
    assert words in planned["lake.orders"] and "config/replicator.yaml:" in planned["lake.orders"]
    found = run_json("doctor", code=3)["result"]
    assert [one["subject"] for one in found if words in one["sentence"]] == ["lane lake.orders"], found
    stopped = {lane["id"]: lane["error"] for lane in run_json("status")["result"]["lanes"]}
    assert words in stopped["lake.orders"]

    lanes = {lane["id"]: lane for lane in run_json("run", "--until-caught-up", code=2)["result"]["lanes"]}
    assert lanes["lake.orders"]["status"] == "suspended" and words in lanes["lake.orders"]["error"]
    assert "`replicator lanes resync lake.orders`" in lanes["lake.orders"]["next_step"]
    run_json("lanes", "resync", "lake.orders", "--yes")
    lanes = {lane["id"]: lane for lane in run_json("run", "--until-caught-up")["result"]["lanes"]}
    assert lanes["lake.orders"]["error"] is None and lanes["lake.orders"]["counts"]["applied"] > 0
