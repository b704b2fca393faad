"""The audit of changes: which values changed, and when."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from .change import KEY_CHANGE_DELETE, OFFSET, OP, PARTITION, TOPIC, TS, TX, UNCHANGED
from .plain_values import to_plain, to_rows
from .table import TableSpec

AUDIT = pa.schema(
    [
        pa.field("at", pa.timestamp("us", "UTC")),
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
    places = zip(*(raw[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    images = zip(envelopes["before"].to_pylist(), envelopes["after"].to_pylist(), strict=True)
    known = dict(zip(places, images, strict=True))
    wanted = [OP, TS, TX, TOPIC, PARTITION, OFFSET, KEY_CHANGE_DELETE, UNCHANGED, *table.keys]
    told = [_to_row(change, table.keys, known, by) for change in to_rows(changes.select(wanted))]
    return pa.Table.from_pylist(told, AUDIT)


def _to_row(
    change: dict[str, Any], keys: Iterable[str], known: dict[tuple[Any, ...], tuple[str | None, str | None]], by: str | None
) -> dict[str, Any]:
    place = change[TOPIC], change[PARTITION], change[OFFSET]
    images = known.get(place, (None, None))
    before, after = images if change[OP] == "u" else (None, None)
    key = {name: to_plain(change[name]) for name in keys} if change[OP] != "t" else {}
    return {
        "at": change[TS],
        "operation": "m" if change[KEY_CHANGE_DELETE] else change[OP],
        "key": json.dumps(key, default=str, ensure_ascii=False) if key else None,
        "changed": _list_changed(before, after, change[UNCHANGED] or ()),
        "transaction": change[TX],
        "who": None if by is None or by in (change[UNCHANGED] or ()) else _find_author(images, by),
        "topic": place[0],
        "partition": place[1],
        "offset": place[2],
    }


def _list_changed(before: str | None, after: str | None, unsent: Iterable[str]) -> list[str] | None:
    """Names of changed columns. Some sources send only the old values that changed. Unchanged values do not count."""
    old, new = (_parse_object(text) for text in (before, after))
    if old is None or new is None:
        return None
    return [name for name, value in new.items() if name in old and name not in unsent and old[name] != value]


def _find_author(images: tuple[str | None, str | None], by: str) -> str | None:
    """The author according to the row after the change, or before it for a deleted row."""
    before, after = (_parse_object(text) for text in images)
    value = (after if after is not None else before or {}).get(by)
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parse_object(text: str | None) -> dict[str, Any] | None:
    """The image of one row. In a message with several rows it is unknown which one belongs to a change."""
    found = json.loads(text) if text else None
    found = found[0] if isinstance(found, list) and len(found) == 1 else found
    return found if isinstance(found, dict) else None
