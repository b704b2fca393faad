"""The meaning of scd1 with column versions. Part of the definition in `model`: a simple fold without plan, engine
or target."""

from __future__ import annotations

from typing import Any

from .model import Change, Key, Outcome, Row, Sequence


class Scd1ColumnVersions:
    """Current rows with the newest sent value of each column. A delete removes the row.

    The end of a key is the highest sequence of its deletes and of all truncates.

    - A row exists if there was an upsert above its key's end. It has the metadata of the highest one.
    - A column has the value of the highest change above the end that sent it. Columns that no change sent are NULL,
      and named in `_cdc_unsent`.
    - A key change is a delete of the old key and a create of the new one, with the values of the create.

    So the rows depend on the set of changes and not on their order. An upsert is applied if it is the highest of
    its row, or of one of its columns. Tombstones are never purged.
    """

    def __init__(self, columns: tuple[str, ...], keys: tuple[str, ...]) -> None:
        self.columns = columns
        self.keys = keys
        self.values: dict[Key, dict[str, tuple[Sequence, Any]]] = {}
        self.highest: dict[Key, Change] = {}
        self.deletes: dict[Key, Sequence] = {}
        self.floor: Sequence = ()

    def apply_change(self, change: Change) -> Outcome:
        if change.op == "t":
            return self._truncate_rows(change)
        key = tuple(change.image[k] for k in self.keys)
        if change.sequence <= self._find_end(key):
            return Outcome.DUPLICATE if change.sequence == self.deletes.get(key) else Outcome.SUPERSEDED
        if change.op == "d":
            self.deletes[key] = change.sequence
            return Outcome.APPLIED
        return self._put_values(key, change)

    def _find_end(self, key: Key) -> Sequence:
        return max(self.deletes.get(key, ()), self.floor)

    def _truncate_rows(self, change: Change) -> Outcome:
        if change.sequence <= self.floor:
            return Outcome.DUPLICATE if change.sequence == self.floor else Outcome.SUPERSEDED
        self.floor = change.sequence
        return Outcome.APPLIED

    def _put_values(self, key: Key, change: Change) -> Outcome:
        last = self.highest[key].sequence if key in self.highest else ()
        known, values = {last}, self.values.setdefault(key, {})
        if change.sequence > last:
            self.highest[key] = change
        applied = change.sequence > last
        for column in self.columns:
            if column in self.keys or column in change.unsent:
                continue
            sequence, _ = values.get(column, ((), None))
            known.add(sequence)
            if change.sequence > sequence:
                values[column] = (change.sequence, change.image.get(column))
                applied = True
        if applied:
            return Outcome.APPLIED
        return Outcome.DUPLICATE if change.sequence in known else Outcome.SUPERSEDED

    def table(self) -> list[Row]:
        """One row per living key."""
        return [self._make_row(key) for key, change in self.highest.items() if change.sequence > self._find_end(key)]

    def _make_row(self, key: Key) -> Row:
        row: Row = dict.fromkeys(self.columns) | dict(zip(self.keys, key, strict=True))
        sent = {c: value for c, (sequence, value) in self.values[key].items() if sequence > self._find_end(key)}
        unsent = sorted(c for c in self.columns if c not in self.keys and c not in sent)
        return row | sent | self.highest[key].bookkeeping() | {"_cdc_unsent": unsent or None}
