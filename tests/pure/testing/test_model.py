"""The model against the source itself."""

import os

import pytest
from hypothesis import given, settings

from replicator.testing.histories import History, histories, make_random_history
from replicator.testing.model import Change, Outcome, Scd1, fold_changes
from replicator.testing.model_transforms import ModelRowTransforms

EXAMPLES = int(os.environ.get("REPLICATOR_EXAMPLES", "100"))
KEYED = ("int", "text", "composite")


def values(rows, columns):
    return sorted(repr([row.get(c) for c in columns]) for row in rows)


def source_rows(history: History):
    source, keys = history.source, history.table().keys
    return [dict(zip(keys, source.make_key(number), strict=True)) | row for number, row in source.live.items()]


@settings(max_examples=EXAMPLES)
@given(history=histories(keys=KEYED))
def test_current_rows_are_the_source_rows(history):
    if history.shape.unseen:
        return
    table = history.table()
    rows, outcomes = fold_changes("scd1", table.column_names, table.keys, history.changes())
    assert values(rows, table.column_names) == values(source_rows(history), table.column_names)
    assert outcomes[Outcome.REJECTED] == 0
    assert outcomes.total() == len(history.changes())


@settings(max_examples=EXAMPLES)
@given(history=histories())
def test_append_has_every_change_once(history):
    table = history.table()
    rows, outcomes = fold_changes("append", table.column_names, table.keys, history.changes())
    originals = [e.change for e in history.source.log if e.change]
    assert len(rows) == outcomes[Outcome.APPLIED] == len(originals)
    assert outcomes.total() == len(history.changes())


def test_histories_reach_every_outcome():
    seen = set()
    for seed in range(60):
        history = make_random_history(seed, keys=KEYED)
        table = history.table()
        wanted = ModelRowTransforms(without_deletes=seed == 0)
        seen |= set(fold_changes("scd1", table.column_names, table.keys, history.changes(), wanted=wanted)[1])
    assert seen == set(Outcome)


def put(op, seq, k, unsent=(), moved_from=None, **image):
    return Change(op, (seq,), {"k": k, **image}, frozenset(unsent), moved_from)


def make_delete(seq, k, moved_to=False):
    return Change("d", (seq,), {"k": k}, moved_to=moved_to)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param([put("c", 1, 1, a=1, b=2), put("u", 2, 1, ["b"], a=3)], {1: (3, 2)}, id="partial keeps the old"),
        pytest.param([put("u", 2, 1, ["b"], a=3)], {}, id="partial without a row"),
        pytest.param(
            [put("c", 1, 1, a=1, b=2), make_delete(2, 1), put("u", 3, 1, ["b"], a=3)], {}, id="partial after delete"
        ),
        pytest.param([put("c", 2, 1, a=2), put("u", 1, 1, a=1)], {1: (2, None)}, id="stale"),
        pytest.param([make_delete(2, 1), put("u", 1, 1, a=1)], {}, id="older than the delete"),
        pytest.param([put("c", 1, 1, a=1), Change("t", (2,), {}), put("c", 3, 2, a=3)], {2: (3, None)}, id="truncate"),
        pytest.param([put("c", 3, 1, a=1), Change("t", (2,), {}), put("c", 2, 2, a=3)], {1: (1, None)}, id="late truncate"),
        pytest.param(
            [put("c", 1, 1, a=1, b=2), make_delete(2, 1, True), put("c", 2, 2, ["b"], (1,), a=3)],
            {2: (3, 2)},
            id="key change",
        ),
        pytest.param(
            [put("c", 1, 1, a=1, b=2), put("c", 2, 2, ["b"], (1,), a=3), make_delete(2, 1, True)],
            {2: (3, 2)},
            id="create half first",
        ),
        pytest.param(
            [put("c", 1, 1, a=1, b=2), make_delete(2, 1, True), put("c", 4, 1, a=9, b=9), put("c", 3, 2, ["b"], (1,), a=3)],
            {1: (9, 9), 2: (3, 2)},
            id="the old row as it was",
        ),
    ],
)
def test_current_rows_by_example(changes, expected):
    model = Scd1(("k", "a", "b"), ("k",))
    for change in changes:
        model.apply_change(change)
    assert {row["k"]: (row["a"], row["b"]) for row in model.table()} == expected
