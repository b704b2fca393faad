"""The history of one row: its changes in order, each with the row before and after it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

import pyarrow as pa

from .change import (
    KEY_CHANGE_DELETE,
    OFFSET,
    OLD_KEY,
    OP,
    PARTITION,
    RAW_RECORD_POSITION,
    TIMESTAMP,
    TOPIC,
    TS,
    TX,
    UNCHANGED,
    Op,
    sequence_columns,
)
from .plain_values import to_json_value, to_rows
from .table import TableSpec

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
    """The JSON form of an entry; `plain_values.to_json_value` converts its values."""
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
    old_keys = ((change[OLD_KEY], table) for _, change, table in _sort_changes(frames) if change.get(OLD_KEY) is not None)
    return {tuple(old[name] for name in table.keys) for old, table in old_keys}


def _sort_changes(frames: Frames) -> Iterable[tuple[tuple[Any, ...], Row, TableSpec]]:
    for frame, table in frames:
        names = sequence_columns(table.sequence)
        for change in to_rows(frame):
            yield tuple(change[name] for name in names), change, table


@dataclass
class _RowStates:
    """The known values of rows, each with a flag: True if all columns are known."""

    alive: dict[Key, tuple[Row, bool]] = field(default_factory=dict)
    deleted: dict[Key, tuple[Row, bool]] = field(default_factory=dict)
    last: dict[Key, tuple[Any, ...]] = field(default_factory=dict)

    def apply_change(self, sequence: tuple[Any, ...], change: Row, table: TableSpec, key: Key) -> list[HistoryEntry]:
        """Apply a change. Returns its entry if it belongs to `key`."""
        row_key = tuple(change[name] for name in table.keys)
        if change[OP] == Op.TRUNCATE:
            before = self.alive.get(key)
            self.alive.clear()
            return [] if before is None else [_make_entry(sequence, change, before[0], None)]
        if self.last.get(row_key) == sequence:
            return []
        self.last[row_key] = sequence
        origin = change.get(OLD_KEY)
        old = row_key if origin is None else tuple(origin[name] for name in table.keys)
        before = self.alive.get(old, None if old == row_key else self.deleted.get(old))
        after = None if change[OP] == Op.DELETE else _compute_after(change, table.column_names, before)
        if after is not None:
            self.alive[row_key] = after
        elif row_key in self.alive:
            self.deleted[row_key] = self.alive.pop(row_key)
        if row_key != key:
            return []
        row_before = before[0] if before else None
        if row_before is None and after is None:
            # The image of a delete; often only the key was sent.
            row_before = {name: change[name] for name in table.column_names if change[name] is not None}
        return [_make_entry(sequence, change, row_before, after and after[0])]


def _make_entry(sequence: tuple[Any, ...], change: Row, before: Row | None, after: Row | None) -> HistoryEntry:
    changed: tuple[str, ...] = ()
    if before is not None and after is not None:
        changed = tuple(name for name, value in after.items() if name not in before or before[name] != value)
    return HistoryEntry(
        change[OP], change[TS], sequence, change[TOPIC], change[PARTITION], change[OFFSET], change[TX],
        before, after, changed, change.get(OLD_KEY), bool(change[KEY_CHANGE_DELETE]),
    )  # fmt: skip


def _compute_after(change: Row, columns: Sequence[str], before: tuple[Row, bool] | None) -> tuple[Row, bool]:
    """The row after a change: unchanged values are as before. A column that was added meanwhile was NULL before."""
    unchanged = set(change[UNCHANGED] or ())
    earlier, whole = before or ({}, False)
    row = {name: earlier.get(name) if name in unchanged else change[name]
           for name in columns if name not in unchanged or whole or name in earlier}  # fmt: skip
    return row, len(row) == len(columns)


# The audit of changes: which values changed, and when.

AUDIT = pa.schema(
    [
        pa.field("at", TIMESTAMP),
        pa.field("operation", pa.string()),
        pa.field("key", pa.string()),
        pa.field("changed", pa.list_(pa.string())),
        pa.field("transaction", pa.string()),
        pa.field("who", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
    ]
)
"""One row per change.

- `operation`: c, u, d, r, t, or m for a row that moved to another key.
- `key`: the key columns as a JSON object; null for a truncate and for a table without a key.
- `changed`: the columns with different values, if the record contains the row before or its changes; otherwise null.
- `who`: the author of the change according to the row, in the column `by` of `build_audit`.
"""


def build_audit(changes: pa.Table, table: TableSpec, envelopes: pa.Table, raw: pa.Table, by: str | None = None) -> pa.Table:
    """`AUDIT` of a changes frame. `envelopes` are the decoder's envelopes of the records `raw` from which it was
    decoded. `by`: the column that names the author of a change."""
    positions = zip(*(raw[name].to_pylist() for name in RAW_RECORD_POSITION), strict=True)
    pairs = zip(envelopes["before"].to_pylist(), envelopes["after"].to_pylist(), strict=True)
    images = dict(zip(positions, pairs, strict=True))
    names = [OP, TS, TX, TOPIC, PARTITION, OFFSET, KEY_CHANGE_DELETE, UNCHANGED, *table.keys]
    entries = []
    for change in to_rows(changes.select(names)):
        unchanged = change[UNCHANGED] or ()
        pair = images.get((change[TOPIC], change[PARTITION], change[OFFSET]), (None, None))
        before, after = pair if change[OP] == "u" else (None, None)
        key = {name: to_json_value(change[name]) for name in table.keys} if change[OP] != "t" else {}
        entry = {
            "at": change[TS],
            "operation": "m" if change[KEY_CHANGE_DELETE] else change[OP],
            "key": json.dumps(key, default=str, ensure_ascii=False) if key else None,
            "changed": _list_audited_changes(before, after, unchanged),
            "transaction": change[TX],
            "who": None if by is None or by in unchanged else _find_author(pair, by),
            "topic": change[TOPIC],
            "partition": change[PARTITION],
            "offset": change[OFFSET],
        }
        entries.append(entry)
    return pa.Table.from_pylist(entries, AUDIT)


def _list_audited_changes(before: str | None, after: str | None, unchanged: Iterable[str]) -> list[str] | None:
    """Names of changed columns. Some sources send only the old values that changed. Unchanged values do not count."""
    old, new = (_parse_object(text) for text in (before, after))
    if old is None or new is None:
        return None
    return [name for name, value in new.items() if name in old and name not in unchanged and old[name] != value]


def _find_author(images: tuple[str | None, str | None], by: str) -> str | None:
    """The author according to the row after the change, or before it for a deleted row."""
    before, after = (_parse_object(text) for text in images)
    value = (after if after is not None else before or {}).get(by)
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parse_object(text: str | None) -> dict[str, Any] | None:
    """The image of one row. In a message with several rows it is unknown which one belongs to a change."""
    document = json.loads(text) if text else None
    document = document[0] if isinstance(document, list) and len(document) == 1 else document
    return document if isinstance(document, dict) else None
