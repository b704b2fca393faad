"""Changes for those who ask what was changed, and when."""

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
"""One row per change. `operation`: c, u, d, r, t, or m for a row that got another key. `key`: its columns as a JSON object,
null of a truncate and of a table without one. `changed`: the columns whose values differ, where the record tells the row
before, or what changed of it; null where it does not. `who`: what the row itself says of that, in the column that was
asked for."""


def build_audit(changes: pa.Table, table: TableSpec, envelopes: pa.Table, raw: pa.Table, by: str | None = None) -> pa.Table:
    """`AUDIT` of a changes frame. `envelopes` are what the decoder says of the records `raw` that it was decoded from. `by`:
    the column in which rows say who changed them."""
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
    """Some sources tell of the row before only what is otherwise. What was not sent is as it was."""
    old, new = (_parse_object(text) for text in (before, after))
    if old is None or new is None:
        return None
    return [name for name, value in new.items() if name in old and name not in unsent and old[name] != value]


def _find_author(images: tuple[str | None, str | None], by: str) -> str | None:
    """As the row says after the change; of one that is gone, as it said before."""
    before, after = (_parse_object(text) for text in images)
    value = (after if after is not None else before or {}).get(by)
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parse_object(text: str | None) -> dict[str, Any] | None:
    """An image of one row; a message of several rows does not tell which of them a change is."""
    found = json.loads(text) if text else None
    found = found[0] if isinstance(found, list) and len(found) == 1 else found
    return found if isinstance(found, dict) else None
