"""Replays of tables whose columns were renamed, removed or given other types."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.snapshotted_shop import CheckpointedShop
from test_as_of import query_as_of, to_sorted_rows

from replicator.testing.histories import History
from replicator.testing.source import Statement, StreamShape

Image = dict[str, Any]
Fields = list[dict[str, Any]]
CHANGED = 6
"""The first record of the other schema: three of six rows change behind it."""


def rename_column(fields: Fields, image: Image) -> None:
    for field in fields:
        field["field"] = "note" if field["field"] == "v2" else field["field"]
    image["note"] = image.pop("v2")


def remove_column(fields: Fields, image: Image) -> None:
    fields[:] = [field for field in fields if field["field"] != "v2"]
    del image["v2"]


def change_to_text(fields: Fields, image: Image) -> None:
    for field in fields:
        field["type"] = "string" if field["field"] == "v2" else field["type"]
    image["v2"] = None if image["v2"] is None else f"no {image['v2']}"


class AlteredShop(CheckpointedShop):
    """Records have another schema from the sixth on. `alter` changes the fields of a row, and the row."""

    alter: Callable[[Fields, Image], None]

    def record(self, end: int) -> None:
        super().record(end)
        file = self.folder / "archive" / "items.jsonl"
        records = [json.loads(line) for line in file.read_text().splitlines()]
        for record in records[CHANGED:]:
            event = json.loads(base64.b64decode(record["value"]["base64"]))
            for part in event["schema"]["fields"]:
                if part["field"] == "after":
                    self.alter(part["fields"], event["payload"]["after"])
            record["value"] = {"base64": base64.b64encode(json.dumps(event).encode()).decode()}
        file.write_text("".join(json.dumps(record) + "\n" for record in records))


CASES = [
    (rename_column, "renamed_columns: {v2: note}"),
    (remove_column, "dropped_columns: remove"),
    (change_to_text, "schema_changes: evolve"),
]


POLICIES = ("scd1", "scd2", "append")
OF_EACH_POLICY = [
    pytest.param(alter, rule, policy, marks=() if number == turn else pytest.mark.long)
    for number, (alter, rule) in enumerate(CASES)
    for turn, policy in enumerate(POLICIES)
]
"""Each change under one policy; under all in a long run."""


@pytest.mark.parametrize(("alter", "rule", "policy"), OF_EACH_POLICY, ids=lambda case: getattr(case, "__name__", None))
def test_replay_keeps_values_of_before_the_schema_change(
    tmp_path: Path, alter: Callable[[Fields, Image], None], rule: str, policy: str
) -> None:
    writes = tuple(Statement("write", n % 6, salt=n) for n in range(9))
    history = History(StreamShape(values=("text", "int"), tombstones=False), writes)
    shop = AlteredShop(tmp_path / "shop", history, f"{{sink: lake, into: plain, policy: {policy}, {rule}}}")
    shop.alter = staticmethod(alter)  # type: ignore[method-assign, assignment]
    for end in (CHANGED, len(writes)):
        shop.reach(end)
        place = shop.history.position(end)
        (found, by), (again, _) = query_as_of(shop, place), query_as_of(shop, place, from_log=True)
        assert by == "version" and found.schema == again.schema and to_sorted_rows(found) == to_sorted_rows(again)
    kept = {"rename_column": "note", "remove_column": "v1", "change_to_text": "v2"}[alter.__name__]
    assert again[kept].null_count <= 2 and len(set(again[kept].to_pylist())) > 3
