"""The history of one row: its changes in order, each with the row before and after it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .change import KEY_CHANGE_DELETE, OFFSET, OLD_KEY, OP, PARTITION, TOPIC, TS, TX, UNCHANGED, Op, sequence_columns
from .plain_values import to_rows
from .table import TableSpec

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One change of a row.

    - `operation`: c, u, d, r or t. `at`: the source's time, None if it is not known.
    - `before`, `after`: the row, None if it does not exist or is not known. Values that were never sent are left out.
      After a key change, `before` is the row under its old key.
    - `changed`: for an update, the columns with different values.
    - `moved_from`: the old key of the row. `moved_away`: the row has another key from here on.
    """

    operation: str
    at: datetime | None
    sequence: tuple[Any, ...]
    topic: str
    partition: int
    offset: int
    transaction: str | None
    before: Row | None
    after: Row | None
    changed: tuple[str, ...]
    moved_from: Row | None = None
    moved_away: bool = False


def to_json(entry: HistoryEntry) -> Row:
    """The JSON form of an entry; `plain_values.to_plain` converts its values."""
    whole = {one.name: getattr(entry, one.name) for one in fields(entry)}
    return whole | {"sequence": list(entry.sequence), "changed": list(entry.changed)}


Frames = Iterable[tuple["pa.Table", TableSpec]]


def build_timeline(frames: Frames, key: Key) -> list[HistoryEntry]:
    """The entries of the row with that key, in order of sequence.

    `frames` contain its changes, truncates, and the changes of its former keys and their former keys (`find_old_keys`);
    other changes may be among them. A repeated change is one entry, since its sequence exists already. A truncate is an
    entry only if there was a row.
    """
    table = _RowStates()
    ordered = sorted(_sort_changes(frames), key=lambda change: change[0])
    return [entry for sequence, change, schema in ordered for entry in table.apply_change(sequence, change, schema, key)]


def find_old_keys(frames: Frames) -> set[Key]:
    """The former keys of rows after key changes."""
    moved = ((change[OLD_KEY], table) for _, change, table in _sort_changes(frames) if change.get(OLD_KEY) is not None)
    return {tuple(old[name] for name in table.keys) for old, table in moved}


def _sort_changes(frames: Frames) -> Iterable[tuple[tuple[Any, ...], Row, TableSpec]]:
    for frame, table in frames:
        names = sequence_columns(table.sequence)
        for change in to_rows(frame):
            yield tuple(change[name] for name in names), change, table


@dataclass
class _RowStates:
    """The known values of rows, each with a flag: True if all columns are known."""

    alive: dict[Key, tuple[Row, bool]] = field(default_factory=dict)
    gone: dict[Key, tuple[Row, bool]] = field(default_factory=dict)
    last: dict[Key, tuple[Any, ...]] = field(default_factory=dict)

    def apply_change(self, sequence: tuple[Any, ...], change: Row, table: TableSpec, key: Key) -> list[HistoryEntry]:
        """Apply a change. Returns its entry if it belongs to `key`."""
        of = tuple(change[name] for name in table.keys)
        if change[OP] == Op.TRUNCATE:
            before = self.alive.get(key)
            self.alive.clear()
            return [] if before is None else [_make_entry(sequence, change, before[0], None)]
        if self.last.get(of) == sequence:
            return []
        self.last[of] = sequence
        origin = change.get(OLD_KEY)
        old = of if origin is None else tuple(origin[name] for name in table.keys)
        before = self.alive.get(old, None if old == of else self.gone.get(old))
        after = None if change[OP] == Op.DELETE else _compute_after(change, table.column_names, before)
        if after is not None:
            self.alive[of] = after
        elif of in self.alive:
            self.gone[of] = self.alive.pop(of)
        sent = _select_sent(change, table.column_names) if after is None else None
        return [_make_entry(sequence, change, before[0] if before else sent, after and after[0])] if of == key else []


def _make_entry(sequence: tuple[Any, ...], change: Row, before: Row | None, after: Row | None) -> HistoryEntry:
    return HistoryEntry(
        change[OP], change[TS], sequence, change[TOPIC], change[PARTITION], change[OFFSET], change[TX],
        before, after, _list_changed(before, after), change.get(OLD_KEY), bool(change[KEY_CHANGE_DELETE]),
    )  # fmt: skip


def _compute_after(change: Row, columns: Sequence[str], before: tuple[Row, bool] | None) -> tuple[Row, bool]:
    """The row after a change: unchanged values are as before. A column that was added meanwhile was NULL before."""
    unsent = set(change[UNCHANGED] or ())
    known, whole = before or ({}, False)
    row = {name: known.get(name) if name in unsent else change[name]
           for name in columns if name not in unsent or whole or name in known}  # fmt: skip
    return row, len(row) == len(columns)


def _select_sent(change: Row, columns: Sequence[str]) -> Row:
    """The image of a delete; often only the key was sent."""
    return {name: change[name] for name in columns if change[name] is not None}


def _list_changed(before: Row | None, after: Row | None) -> tuple[str, ...]:
    if before is None or after is None:
        return ()
    return tuple(name for name, value in after.items() if name not in before or before[name] != value)
