"""On Spark each task decides about some keys of a batch; together they equal one process."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from adapters.apply.column_versions import COLUMN_VERSIONS
from adapters.apply.per_column_in_process import add_key_rows, decide_columns, read_key_states
from adapters.apply.rows_frame import to_rows
from adapters.sinks.delta.spark.per_column import ARRIVAL, CHANGE, COUNTS, KEEP, KIND, RELATED, STORED, WRITE, PerColumnTask
from replicator.domain.change import OP, UNCHANGED, changes_schema
from replicator.domain.policy.plan import Counts
from replicator.domain.policy.policies import plan_for
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.rows import RowTransforms

TAGS = pa.list_(pa.struct([("t", pa.string())]))
TABLE = TableSpec("public.items", (Column("id", pa.int64()), Column("a", pa.int64()), Column("b", TAGS)), ("id",), 1)
PLAN = plan_for("scd1", TABLE, None, RowTransforms(has_column_versions=True))
KEYS = 8


def changes(random: Random, count: int, truncates: int) -> pa.Table:
    """Rows of a batch, in order of arrival; each sequence comes once."""
    sequences = random.sample(range(10, 400), count)
    rows: list[dict[str, Any]] = []
    for at, sequence in enumerate(sequences):
        row = {"_topic": "t", "_partition": 0, "_offset": at, "_seq_1": sequence, "_op": "u"}
        if at < truncates:
            rows.append(row | {"_op": "t"})
            continue
        unsent = random.choice([None, None, ["a"], ["b"]])
        image = {"a": sequence, "b": [{"t": str(sequence)}]}
        sent = {name: value for name, value in image.items() if name not in (unsent or ())}
        deleted = random.random() < 0.2
        rows.append(row | {"id": random.randrange(KEYS)} | ({"_op": "d"} if deleted else sent | {"_unsent": unsent}))
    random.shuffle(rows)
    made = to_rows(pa.Table.from_pylist(rows, changes_schema(TABLE)), PLAN, datetime(2024, 1, 1, tzinfo=UTC))
    return made.select([OP, *(c.name for c in PLAN.target), UNCHANGED])


def before(random: Random) -> tuple[pa.Table, pa.Table]:
    """What the target has of some keys, and what is kept beside it."""
    there = {key: random.randrange(200) for key in range(KEYS) if random.random() < 0.6}
    texts = {
        key: json.dumps({"older": {"a": [max(there[key] - 5, 1)]}} if key in there else {"deleted": [random.randrange(200)]})
        for key in range(KEYS)
        if random.random() < 0.6
    }
    related = pa.table({"id": pa.array(there, pa.int64()), "_cdc_seq_1": pa.array(list(there.values()), pa.int64())})
    return related, pa.table(
        {"id": pa.array(texts, pa.int64()), COLUMN_VERSIONS: pa.array(list(texts.values()), pa.string())}
    )


def at_once(rows: pa.Table, related: pa.Table, beside: pa.Table) -> tuple[list[Any], list[Any], Counts]:
    clears = pc.any(pc.equal(rows[OP], "t")).as_py()
    whole = add_key_rows(rows, beside.select(["id"])) if clears else rows
    done = decide_columns(PLAN, whole, (3,), lambda keys: read_key_states(PLAN, keys, related, beside))
    keep = [(row["id"], row[COLUMN_VERSIONS]) for row in done.side_rows.to_pylist()]
    return sorted(map(repr, done.write.to_pylist())), sorted(keep), done.counts


def in_parts(rows: pa.Table, related: pa.Table, beside: pa.Table, parts: int) -> tuple[list[Any], list[Any], Counts]:
    placed = rows.append_column(ARRIVAL, pa.array([7 * i for i in range(rows.num_rows)], pa.int64()))
    is_truncate = pc.equal(rows[OP], "t")
    truncates = placed.filter(is_truncate)
    alone = decide_columns(PLAN, truncates.drop_columns([ARRIVAL]), (3,), lambda _: []).counts
    clears = truncates.num_rows > 0
    deciding = PerColumnTask(PLAN, (3,), truncates if clears else pa.table({}), alone, clears=clears)
    schema = pa.schema([(KIND, pa.string()), (ARRIVAL, pa.int64()), *rows.schema, (COLUMN_VERSIONS, pa.string())])
    told: list[pa.RecordBatch] = []
    for part in range(parts):
        given = []
        for kind, table in ((STORED, beside), (CHANGE, placed.filter(pc.invert(is_truncate))), (RELATED, related)):
            mine = table.filter(pa.array([key % parts == part for key in table["id"].to_pylist()], pa.bool_()))
            # Of the changes that come out of a shuffle none is where it was.
            given += [{**row, KIND: kind} for row in reversed(mine.to_pylist())]
        batches = pa.Table.from_pylist(given, schema).to_batches(max_chunksize=3)
        told += deciding.run(batches if given else [])
    rows_told = pa.Table.from_batches(told, schema).to_pylist()
    of = {kind: [row for row in rows_told if row[KIND] == kind] for kind in (WRITE, KEEP, COUNTS)}
    numbers = [json.loads(row[COLUMN_VERSIONS]) for row in of[COUNTS]]
    *counts, written, kept = (sum(each) for each in zip([0] * 8, *numbers, strict=True))
    assert (written, kept) == (len(of[WRITE]), len(of[KEEP]))
    names = rows.column_names
    write = sorted(repr({name: row[name] for name in names}) for row in of[WRITE])
    return write, sorted((row["id"], row[COLUMN_VERSIONS]) for row in of[KEEP]), Counts(*counts) + alone


@pytest.mark.parametrize("truncates", [0, 1, 3])
def test_tasks_together_equal_one_process(truncates):
    for seed in range(4):
        random = Random(seed)
        rows, (related, beside) = changes(random, 6 + seed * 8, truncates), before(random)
        if not truncates:
            # Without a truncate only what is known of the batch's keys is brought together.
            mine = pa.array(rows["id"].to_pylist())
            related, beside = (t.filter(pc.is_in(t["id"], value_set=mine)) for t in (related, beside))
        wanted = at_once(rows, related, beside)
        assert wanted[0] or truncates
        for parts in (1, 3):
            assert in_parts(rows, related, beside, parts) == wanted, (seed, parts)
