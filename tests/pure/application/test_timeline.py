"""The history of a row equals the model, change by change."""

from __future__ import annotations

import pytest

from replicator.domain.timeline import HistoryEntry, build_timeline
from replicator.testing.histories import History, make_random_history
from replicator.testing.model import fold_changes, is_alike

SEEDS = range(40)


def states(history: History, key: tuple) -> list[dict | None]:
    """The row after each change of the table in the order of sequences, where it is another one than before."""
    table = history.table()
    keyed = ((tuple(str(c.image.get(name)) for name in table.keys), c) for c in reversed(history.changes()))
    changes = sorted({(c.sequence, not c.moved_to, of): c for of, c in keyed}.items(), key=lambda item: item[0])
    found: list[dict | None] = []
    for end in range(len(changes)):
        rows, _ = fold_changes("scd1", table.column_names, table.keys, [change for _, change in changes[: end + 1]])
        mine = next((row for row in rows if tuple(row[name] for name in table.keys) == key), None)
        state = None if mine is None else {name: mine[name] for name in table.column_names}
        if not found or not same(found[-1], state):
            found.append(state)
    return found


def same(one: dict | None, other: dict | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(is_alike(one.get(name), other.get(name)) for name in {*one, *other})


def is_whole(history: History, entry: HistoryEntry) -> bool:
    [event] = [e for e in history.events if (e.partition, e.offset) == (entry.partition, entry.offset)]
    return set(history.source.versions[event.version].column_names) <= set(entry.after or ())


@pytest.mark.parametrize("seed", SEEDS)
def test_every_version_of_every_row_equals_the_model(seed: int) -> None:
    history = make_random_history(seed, 25, keys=("int", "text"), disorder=seed % 3)
    table = history.table()
    frames = [(frame, schema) for schema, frame in history.runs(0, None)]
    keys = {tuple(change.image[name] for name in table.keys) for change in history.changes() if change.op != "t"}
    assert keys
    for key in keys:
        shown: list[dict | None] = []
        for entry in build_timeline(frames, key):
            # A row of which something was never sent is in no target.
            state = entry.after if is_whole(history, entry) else None
            if not shown or not same(shown[-1], state):
                shown.append(state)
        wanted = states(history, key)
        while wanted and wanted[0] is None:
            wanted.pop(0)
        while shown and shown[0] is None:
            shown.pop(0)
        assert len(shown) == len(wanted) and all(map(same, shown, wanted)), (key, shown, wanted)
