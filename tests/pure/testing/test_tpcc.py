"""The history derived from TPC-C, and the conditions that it must fulfil."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from benchmarks.tpcc import FORMATS, TABLES, Tpcc, find_violations, make_raw_frame
from replicator.domain.change import Op


def tables(world: Tpcc) -> dict[str, list[dict[str, Any]]]:
    return {name: [dict(row) for row in world.rows(name)] for name in TABLES}


def test_conditions_hold_after_every_transaction():
    world = Tpcc(seed=2, warehouses=2)
    world.load()
    assert find_violations(tables(world)) == []
    for _ in world.transactions(120):
        assert find_violations(tables(world)) == []


def test_each_condition_can_be_violated():
    """By one wrong value, or by a missing or extra row."""
    world = Tpcc(seed=2, warehouses=2)
    world.history(200)

    def change_rows(table: str, **values: Any) -> list[int]:
        found = tables(world)
        found[table][0] |= values
        return find_violations(found)

    def remove_rows(table: str) -> list[int]:
        found = tables(world)
        del found[table][len(found[table]) // 2]
        return find_violations(found)

    seen = {
        *change_rows("warehouse", w_ytd=Decimal(1)), *change_rows("district", d_next_o_id=1),
        *change_rows("district", d_ytd=Decimal(1)),
        *remove_rows("new_order"), *remove_rows("order_line"), *remove_rows("orders"), *remove_rows("history"),
        *change_rows("order_line", ol_delivery_d=None), *change_rows("customer", c_balance=Decimal(1)),
    }  # fmt: skip
    assert seen == {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12}


def test_history_has_difficult_changes():
    """Key changes, a reused key, deletes, NULLs that appear and disappear, text of any kind."""
    world = Tpcc(seed=4, warehouses=2)
    history = world.history(400)
    moved = [c for c in history if c.op == Op.UPDATE and any(c.before[k] != c.after[k] for k in TABLES[c.table].keys)]
    assert {"item", "stock"} == {c.table for c in moved}
    old = {c.before["i_id"] for c in moved if c.table == "item"}
    assert old & {c.after["i_id"] for c in history if c.op == Op.CREATE and c.table == "item"}
    assert {"new_order", "item", "stock"} == {c.table for c in history if c.op == Op.DELETE}
    images = [image for c in history for image in (c.before, c.after) if image]
    values = {value for image in images for value in image.values()}
    assert {None, "", "NULL", "\\N", "two\nlines", "明日香", Decimal("0.00")} <= values


@pytest.mark.parametrize("name", FORMATS)
def test_records_depend_on_the_seed_only(name):
    first, second = (make_raw_frame(name, Tpcc(seed=9).history(20)) for _ in range(2))
    assert first.equals(second)
    assert not first.equals(make_raw_frame(name, Tpcc(seed=10).history(20)))
