"""What a lane knows of its schema outlives the program: rows do not depend on when it was stopped."""

from __future__ import annotations

import json

import pytest
from paths import GOLDEN
from support.debezium_events import ID, column
from support.schema_changes import Project, record

pytestmark = pytest.mark.postgres

PRODUCTS = GOLDEN / "decoders" / "debezium" / "postgres" / "cdc.public.products.jsonl"
RECORDS = [json.loads(line) for line in PRODUCTS.read_text(encoding="utf-8").splitlines()]
SINKS = ("lake", "mirror")
NAME, TITLE = column("name", "string"), column("title", "string")


def run_until_stopped(project: Project, cuts: list[int]) -> dict[str, list[dict[str, object]]]:
    """The rows of each target when the program was stopped at these records."""
    for start, end in zip([0, *cuts], [*cuts, len(RECORDS)], strict=True):
        project.feed(f"{start:03}", RECORDS[start:end])
        lanes = project.run()
        assert {lane["error"] for lane in lanes.values()} == {None}
    return {sink: project.rows(sink, "products") for sink in SINKS}


def test_a_column_missing_from_new_records_is_null_wherever_the_program_stopped(tmp_path, postgres_server):
    """SKU-4 is deleted and created anew after `title` was renamed: as a full image without it, it has none."""
    whole = run_until_stopped(Project(tmp_path / "whole", {"products": ""}, postgres_server.database()), [])
    assert whole["lake"] and [row["sku"] for row in whole["lake"]] == ["SKU-1", "SKU-2", "SKU-3", "SKU-4"]
    (fourth,) = (row for row in whole["lake"] if row["sku"] == "SKU-4")
    assert (fourth["title"], fourth["product_title"]) == (None, "again")
    for cuts in ([4], [4, 11]):
        project = Project(tmp_path / "-".join(map(str, cuts)), {"products": ""}, postgres_server.database())
        assert run_until_stopped(project, cuts) == whole, cuts


@pytest.mark.parametrize("policy", ["scd1", "scd2", "append"])
def test_unchanged_values_are_kept_when_another_column_was_dropped(tmp_path, postgres_dsn, policy):
    project = Project(tmp_path, {"t": ""}, postgres_dsn, f", policy: {policy}")
    old, new = [ID, NAME, TITLE], [ID, NAME]
    project.feed("a", [record("t", 0, old, [ID], after={"id": 1, "name": "a", "title": "t"})])
    project.run()
    project.feed("b", [record("t", 1, new, [ID], op="u", after={"id": 1, "name": "__debezium_unavailable_value"})])
    assert {lane["counts"]["rejected"] for lane in project.run().values()} == {0}
    for sink in SINKS:
        kept = None if policy == "append" else "a"
        assert {"id": 1, "name": kept, "title": None} in project.rows(sink, "t"), sink
