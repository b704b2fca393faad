"""The accounting identity, checked on published numbers: every record is ignored, rejected, or a change."""

from __future__ import annotations

from collections import Counter
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

BEFORE_LANES = ("route", "decode")


def count_unaccounted(status: dict[str, Any], metrics: str, sink: str) -> dict[str, tuple[int, int]]:
    """Counts by source the records that `status.json` and `/metrics` leave out. Each record must be one change, and the
    lanes of `sink` must have each table once."""
    sources = {
        lane["id"]: source["name"] for source in status["sources"] for lane in status["lanes"] if lane["sink"] == sink
    }
    shown: Counter[str] = Counter()
    for source in status["sources"]:
        shown[source["name"]] += source["records"] - sum(source["ignored"].values())
    for one in status["rejects"]:
        shown[one["source"]] -= one["records"] if one["stage"] in BEFORE_LANES else 0
    for lane in status["lanes"]:
        shown[sources.get(lane["id"], "")] -= sum(lane["counts"].values())
    measured: Counter[str] = Counter()
    for name, labels, value in parse_samples(metrics):
        if name == "replicator_records_consumed_total":
            measured[labels["source"]] += value
        elif name == "replicator_records_ignored_total" or (
            name == "replicator_rejects_total" and labels["stage"] in BEFORE_LANES
        ):
            measured[labels["source"]] -= value
        elif name == "replicator_changes_total":
            measured[sources.get(labels["lane"], "")] -= value
    return {s["name"]: (shown[s["name"]], measured[s["name"]]) for s in status["sources"]}


def parse_samples(metrics: str) -> list[tuple[str, dict[str, str], int]]:
    """The counters and whole-number gauges of the metrics page."""
    found = [sample for family in text_string_to_metric_families(metrics) for sample in family.samples]
    return [(one.name, one.labels, int(one.value)) for one in found if one.value == one.value]
