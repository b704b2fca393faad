"""Frames of the local engine if the types of a table change, and types that DuckDB cannot read."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from adapters.engines.local import LocalEngine
from replicator.domain.change import OLD_KEY, changes_schema
from replicator.domain.policy.policies import plan_for
from replicator.domain.table import Column, TableSpec

ENGINE = LocalEngine()


def table(kind: pa.DataType, keys: tuple[str, ...] = ("id",)) -> TableSpec:
    return TableSpec("public.items", (Column("id", kind), Column("name", pa.string())), keys, 3)


def changes(of: TableSpec, *rows: dict[str, Any]) -> pa.Table:
    """One create per row, numbered by its place unless the row says otherwise."""
    schema = changes_schema(of)
    made = [
        {"_op": "c", "_seq_1": i, "_seq_2": 0, "_seq_3": 0, "_topic": "t", "_partition": 0, "_offset": i} | row
        for i, row in enumerate(rows, 1)
    ]
    return pa.Table.from_pylist([{n: row.get(n) for n in schema.names} for row in made], schema)


def test_unite_widens_the_old_key_with_the_key() -> None:
    """A key that becomes wider in the stream is as wide in the old key of a key change."""
    narrow, wide = table(pa.int32()), table(pa.int64())
    parts = [changes(narrow, {"id": 2, OLD_KEY: {"id": 1}}), changes(wide, {"id": 2**40})]
    united = ENGINE.frames.concat(parts, wide)
    assert united.schema == changes_schema(wide)
    assert united[OLD_KEY].to_pylist() == [{"id": 1}, None]


def test_folds_of_both_widths_can_be_joined() -> None:
    narrow, wide = table(pa.int32()), table(pa.int64())
    plan = plan_for("scd1", wide)
    folds = [
        ENGINE.fold(ENGINE.frames.concat([part], wide), plan).frame
        for part in (changes(narrow, {"id": 1}), changes(wide, {"id": 2}))
    ]
    assert ENGINE.frames.concat(folds)["id"].to_pylist() == [1, 2]


@pytest.mark.parametrize("kind", [pa.decimal256(50, 2), pa.list_(pa.decimal256(50, 2))], ids=str)
def test_values_of_types_unknown_to_duckdb_are_distinguished(kind: pa.DataType) -> None:
    """As keys of rows, and as values of a table without a key; each value twice, so that rows must be matched."""
    one, two = ([Decimal(1)], [Decimal(2)]) if pa.types.is_list(kind) else (Decimal(1), Decimal(2))
    rows = [{"id": one, "_seq_1": 1}, {"id": two, "_seq_1": 1}, {"id": one, "_seq_1": 1}]
    for keys, policy in ((("id",), "scd1"), ((), "append")):
        of = table(kind, keys)
        folded = ENGINE.fold(changes(of, *rows), plan_for(policy, of))
        assert folded.frame["id"].to_pylist() == changes(of, *rows[:2])["id"].to_pylist()
        assert folded.counts.duplicate == 1
