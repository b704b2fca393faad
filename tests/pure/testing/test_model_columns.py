"""The model of sequences per column: its rows do not depend on the order of changes."""

from __future__ import annotations

from hypothesis import strategies as st

from replicator.testing.contract import for_all
from replicator.testing.model import Change, Outcome, Scd1ColumnVersions

COLUMNS, KEYS = ("id", "a", "b"), ("id",)


def sort_rows(changes: list[Change]) -> dict[int, dict[str, object]]:
    """The rows, said without any order."""
    rows = {}
    floor = max((c.sequence for c in changes if c.op == "t"), default=())
    for key in {c.image["id"] for c in changes if c.op != "t"}:
        mine = [c for c in changes if c.op != "t" and c.image["id"] == key]
        end = max([floor, *(c.sequence for c in mine if c.op == "d")])
        alive = sorted((c for c in mine if c.op != "d" and c.sequence > end), key=lambda c: c.sequence)
        if alive:
            values = {n: [c.image[n] for c in alive if n not in c.unsent] for n in ("a", "b")}
            row = {n: sent[-1] if sent else None for n, sent in values.items()}
            unsent = [n for n, sent in values.items() if not sent] or None
            rows[key] = {"id": key, **row, **alive[-1].bookkeeping(), "_cdc_unsent": unsent}
    return rows


def change(number: int, op: str, key: int, unsent: frozenset[str]) -> Change:
    image = {} if op == "t" else {"id": key, "a": number, "b": -number}
    return Change(op, (number,), image, unsent, event_id=str(number))


PARTS = st.tuples(
    st.sampled_from("cuuuudt"),
    st.integers(1, 2),
    st.sampled_from((frozenset(), frozenset("a"), frozenset("b"), frozenset("ab"))),
)


def test_rows_do_not_depend_on_the_order_of_changes():
    @for_all(parts=st.lists(PARTS, max_size=8), order=st.randoms(use_true_random=False))
    def check(parts, order):
        changes = [change(i, *part) for i, part in enumerate(parts, 1)]
        shuffled = [*changes, *changes[: len(changes) // 2]]
        order.shuffle(shuffled)
        model = Scd1ColumnVersions(COLUMNS, KEYS)
        outcomes = [model.apply_change(c) for c in shuffled]
        assert {row["id"]: row for row in model.table()} == sort_rows(changes)
        assert Outcome.REJECTED not in outcomes


def test_late_part_is_applied_and_stale_part_is_not():
    model = Scd1ColumnVersions(COLUMNS, KEYS)
    late, stale = change(2, "u", 1, frozenset("a")), change(3, "u", 1, frozenset("b"))
    assert model.apply_change(change(1, "c", 1, frozenset())) is Outcome.APPLIED
    assert model.apply_change(change(5, "u", 1, frozenset("b"))) is Outcome.APPLIED
    assert [model.apply_change(late), model.apply_change(late)] == [Outcome.APPLIED, Outcome.DUPLICATE]
    assert model.apply_change(stale) is Outcome.SUPERSEDED
    assert [(row["a"], row["b"], row["_cdc_seq_1"]) for row in model.table()] == [(5, -2, 5)]
