"""A lane's known schema survives the program: rows do not depend on restarts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from paths import GOLDEN
from support.debezium_events import ID, encode_with_schema, make_column, make_event_key
from support.schema_changes import Project, make_archive_record, make_canal_record

pytestmark = pytest.mark.postgres

PRODUCTS = GOLDEN / "decoders" / "debezium" / "postgres" / "cdc.public.products.jsonl"
RECORDS = [json.loads(line) for line in PRODUCTS.read_text(encoding="utf-8").splitlines()]
SINKS = ("lake", "mirror")
NAME, TITLE = make_column("name", "string"), make_column("title", "string")


def run_with_stops(project: Project, cuts: list[int]) -> dict[str, list[dict[str, object]]]:
    """The rows of each target after stops of the program at these records."""
    for start, end in zip([0, *cuts], [*cuts, len(RECORDS)], strict=True):
        project.feed(f"{start:03}", RECORDS[start:end])
        lanes = project.run()
        assert {lane["error"] for lane in lanes.values()} == {None}
    return {sink: project.rows(sink, "products") for sink in SINKS}


def test_column_missing_from_new_records_is_null_after_any_restart(tmp_path, postgres_server):
    """SKU-4 is deleted and created again after `title` was renamed. Its full image has no `title`."""
    whole = run_with_stops(Project(tmp_path / "whole", {"products": ""}, postgres_server.database()), [])
    assert whole["lake"] and [row["sku"] for row in whole["lake"]] == ["SKU-1", "SKU-2", "SKU-3", "SKU-4"]
    (fourth,) = (row for row in whole["lake"] if row["sku"] == "SKU-4")
    assert (fourth["title"], fourth["product_title"]) == (None, "again")
    for cuts in ([4], [4, 11]):
        project = Project(tmp_path / "-".join(map(str, cuts)), {"products": ""}, postgres_server.database())
        assert run_with_stops(project, cuts) == whole, cuts


@pytest.mark.parametrize("policy", ["scd1", "scd2", "append"])
def test_unchanged_value_survives_the_drop_of_another_column(tmp_path, postgres_dsn, policy):
    project = Project(tmp_path, {"t": ""}, postgres_dsn, f", policy: {policy}")
    old, new = [ID, NAME, TITLE], [ID, NAME]
    project.feed("a", [make_archive_record("t", 0, old, [ID], after={"id": 1, "name": "a", "title": "t"})])
    project.run()
    project.feed(
        "b", [make_archive_record("t", 1, new, [ID], op="u", after={"id": 1, "name": "__debezium_unavailable_value"})]
    )
    assert {lane["counts"]["rejected"] for lane in project.run().values()} == {0}
    for sink in SINKS:
        kept = None if policy == "append" else "a"
        assert {"id": 1, "name": kept, "title": None} in project.rows(sink, "t"), sink


def make_tombstone_records() -> list[Any]:
    rows = [make_archive_record("t", n, [ID, NAME], [ID], after={"id": n, "name": "a"}) for n in range(4)]
    rows[2] |= {"key": rows[1]["key"], "value": None}
    return rows


def make_handle_key_records() -> list[Any]:
    """As TiCDC sends them with `delete-only-output-handle-key-columns`."""
    rows = [make_canal_record("t", n, "INSERT", {"id": n, "name": "a"}) for n in range(4)]
    rows[2] = make_canal_record("t", 2, "DELETE", {"id": 1})
    return rows


def make_document_records() -> list[Any]:
    """As ExtractNewDocumentState sends them: a schema for each document."""
    key, deleted = make_column("_id", "int64", optional=False), make_column("__deleted", "string")
    rows = []
    for n, document in enumerate([{"name": "a"}, {"name": "a"}, {"__deleted": "true"}, {"name": "a"}]):
        row = {"_id": 1 if n == 2 else n, "__deleted": "false", **document}
        fields = [c for c in (key, NAME, deleted) if c["field"] in row]
        schema = {"type": "struct", "fields": fields, "optional": False, "name": "cdc.public.t.Value"}
        value = encode_with_schema(schema, row)
        place = {"topic": "cdc.public.t", "partition": 0, "offset": n, "timestamp": n, "headers": None}
        rows.append({**place, "key": make_event_key(id=row["_id"]).decode(), "value": value.decode()})
    return rows


@pytest.mark.parametrize(
    ("make_records", "config"),
    [
        (make_tombstone_records, [(", to:", ", tombstones: delete, to:")]),
        (make_handle_key_records, []),
        (
            make_document_records,
            [("debezium_json,", "debezium_json, flattened: true,"), (", to:", ", keys: [_id], tombstones: delete, to:")],
        ),
    ],
)
@pytest.mark.parametrize("schema_changes", ["evolve", "fail"])
def test_delete_without_columns_empties_none(tmp_path, postgres_dsn, make_records, config, schema_changes):
    flat = make_records is make_handle_key_records
    project = Project(tmp_path, {"t": ""}, postgres_dsn, f", schema_changes: {schema_changes}", flat=lambda _: flat)
    project.configure(*config)
    records, folder = make_records(), "flat" if flat else "archive"
    project.feed("a", records[:2], folder)
    project.run()
    project.feed("b", records[2:], folder)
    assert {(lane["error"], lane["counts"]["rejected"]) for lane in project.run().values()} == {(None, 0)}
    for sink in SINKS:
        assert [row["name"] for row in project.rows(sink, "t")] == ["a", "a"], sink
