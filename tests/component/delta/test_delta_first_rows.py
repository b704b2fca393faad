"""The first rows of an empty table are appended: the same rows that a merge would leave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.delta_writes import make_item_changes, make_write

from adapters.delta import merge
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.change import OP, Op
from replicator.domain.expr import AllOf
from replicator.domain.policy.plan import CDC_APPLIED_AT
from replicator.ports.frames import Write
from replicator.testing.delivery import make_lane
from replicator.testing.sink_base import refuse_rejects


def read_commits(folder: Path, policy: str) -> tuple[list[str], list[dict[str, Any]]]:
    """The operations of the commits with rows, and the rows. One row is deleted before it exists."""
    sink, lane = DeltaRsSink({"path": str(folder)}), make_lane(policy)
    first = make_write(make_item_changes(1, 2, 3), policy=policy)
    operations = pa.array([Op.CREATE.value, Op.DELETE.value, Op.CREATE.value])
    frame = first.folded.frame.set_column(first.folded.frame.column_names.index(OP), OP, operations)
    sink.prepare(lane, first.plan)
    sink.apply([write_of_frame(first, frame)], refuse_rejects)
    sink.apply([make_write(make_item_changes(3, 4, op="u", v="new"), 3, policy=policy)], refuse_rejects)
    sink.close()
    table = DeltaTable(str(folder / "items"))
    rows = table.to_pyarrow_table().drop_columns([CDC_APPLIED_AT]).to_pylist()
    return [entry["operation"] for entry in table.history()][::-1], sorted(rows, key=repr)


def write_of_frame(write: Write[pa.Table], frame: pa.Table) -> Write[pa.Table]:
    """The same write with other rows."""
    folded = replace(write.folded, frame=frame, facts=replace(write.folded.facts, has_deletes=True))
    return replace(write, folded=folded)


@pytest.mark.parametrize("policy", ["scd1", "scd2"])
def test_appended_first_rows_equal_merged_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    operations, rows = read_commits(tmp_path / "appended", policy)
    assert operations == ["CREATE TABLE", "WRITE", "MERGE"]
    monkeypatch.setattr(merge, "can_insert_as_is", lambda _: False)
    merged, same = read_commits(tmp_path / "merged", policy)
    assert merged == ["CREATE TABLE", "MERGE", "MERGE"]
    assert rows == same
    assert {row["id"] for row in rows} == {1, 3, 4}


def test_plan_with_other_inserts_is_merged() -> None:
    """An example is a plan in which deletes leave rows."""
    plan = make_write(make_item_changes(1)).plan
    assert merge.can_insert_as_is(plan)
    insert = next(clause for clause in plan.clauses if not clause.matched)
    for other in (replace(insert, when=AllOf(())), replace(insert, assign=insert.assign[1:])):
        assert not merge.can_insert_as_is(replace(plan, clauses=(other,)))
