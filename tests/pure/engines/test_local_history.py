"""Versions computed in process equal the model in every history."""

from __future__ import annotations

import itertools
import os

import pytest
from support.budget import select_every_nth
from support.history_in_memory import TABLE, InMemoryTarget, assert_any_order, assert_random_histories, make_frame

from replicator.domain.policy.policies import scd2
from replicator.testing.model import Change, Row, Scd2

EXAMPLES = int(os.environ.get("REPLICATOR_EXAMPLES", "40"))


@pytest.mark.slow
@pytest.mark.parametrize("untracked", [(), ("v1", "v3")])
def test_random_histories(untracked):
    assert_random_histories(range(EXAMPLES), untracked)


@pytest.mark.parametrize("untracked", [(), ("b",), ("a", "b")])
def test_any_order_of_whole_changes(untracked):
    assert_any_order(range(EXAMPLES), untracked)


FEED = (
    (1, "Alex", "c", 1), (2, "Jessica", "c", 2), (3, "Mikhail", "c", 3), (4, "Gary", "c", 4),
    (5, "Chris owner", "c", 6), (5, "Chris manager", "u", 5), (6, "Pat", "d", 8), (6, "Pat", "c", 7),
)  # fmt: skip
VERSIONS = {
    (1, "Alex", 1, None), (2, "Jessica", 2, None), (3, "Mikhail", 3, None), (4, "Gary", 4, None),
    (5, "Chris manager", 5, 6), (5, "Chris owner", 6, None), (6, "Pat", 7, 8),
}  # fmt: skip


def employees(order: tuple[int, ...]) -> list[Change]:
    made = []
    for place, number in enumerate(order):
        key, name, op, sequence = FEED[number]
        made.append(Change(op, (sequence,), {"k": key, "a": name, "b": None}, event_id=f"t-0-{place}"))
    return made


def to_tuples(rows: list[Row]) -> set[tuple]:
    return {(row["k"], row["a"], row["_cdc_seq_1"], row.get("_cdc_end_seq_1")) for row in rows}


def test_employees_in_every_order():
    """The model in one of 17 of the 40,320 orders, in a long run in all of them; the versions at once and one by one."""
    for order in select_every_nth(17, itertools.permutations(range(len(FEED)))):
        model = Scd2(TABLE.column_names, TABLE.keys)
        for change in employees(order):
            model.apply_change(change)
        assert to_tuples(model.table()) == VERSIONS, order
    for chris, pat in itertools.product(((4, 5), (5, 4)), ((6, 7), (7, 6))):
        changes = employees((0, 1, 2, 3, *chris, *pat))
        for size in (len(FEED), 1):
            memory = InMemoryTarget(scd2(TABLE))
            for start in range(0, len(FEED), size):
                memory.apply(make_frame(changes, start, start + size))
            assert to_tuples(list(memory.rows.values())) == VERSIONS
