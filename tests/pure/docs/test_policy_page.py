"""Tables of the page about policies: the model gives these rows."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from paths import PROJECT

from replicator.testing.model import Change, fold_changes
from replicator.testing.model_transforms import ModelRowTransforms

PAGE = (PROJECT / "docs" / "explanation" / "policies.md").read_text()
STREAM = "One stream under each policy"
RESULTS = {
    "`scd1`: current rows": ("scd1", None),
    "`scd1` with soft deletes": ("scd1", ModelRowTransforms(soft_deletes=True)),
    "`scd2`: every version": ("scd2", None),
    "`append`: every change": ("append", None),
}


def read_table(heading: str) -> list[dict[str, str]]:
    """The first table below the heading, with a row as cells by column."""
    (_, below) = re.split(rf"^#+ {re.escape(heading)}$", PAGE, flags=re.MULTILINE)
    lines = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)[0].splitlines()
    names, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(names, row, strict=True)) for row in rows]


def read_changes() -> list[Change]:
    changes: list[Change] = []
    for row in read_table(STREAM):
        made = datetime.strptime(row["made at"], "%H:%M").replace(tzinfo=UTC)
        values = {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", row["change"])}
        before = [change.image for change in changes if change.image["id"] == values["id"]]
        op = {"insert": "c", "update": "u", "delete": "d"}[row["change"].split()[0]]
        changes.append(Change(op, (made.hour * 60 + made.minute,), {**(before[-1] if before else {}), **values}, ts=made))
    return changes


def to_cell(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%H:%M}"
    return "NULL" if value is None else str(value).lower()


@pytest.mark.parametrize("heading", RESULTS)
def test_model_gives_the_rows_of_the_page(heading: str) -> None:
    policy, wanted = RESULTS[heading]
    rows, _ = fold_changes(policy, ("id", "qty"), ("id",), read_changes(), wanted=wanted)
    expected = read_table(heading)
    assert [{name: to_cell(row.get(name)) for name in expected[0]} for row in rows] == expected
