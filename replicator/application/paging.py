"""Pages of rows: what somebody asked for as a selection, and where the next page begins."""

from __future__ import annotations

import binascii
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import pyarrow as pa

from replicator.domain.plan import EVENT_ID
from replicator.domain.selection import (
    Condition,
    Misasked,
    Operator,
    Selection,
    is_comparable,
    place_text,
    place_value,
    value_of,
)
from replicator.ports.read_side import Filter, Page, Wanted

OPERATORS: Mapping[str, Operator] = {"eq": "=", "ne": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
"""As filters name them; beside these there is `null`, with `true` or `false`."""
NULL: Mapping[str, Operator] = {"true": "is null", "false": "is not null"}
SEQUENCE = re.compile(r"_cdc_seq_\d+")
MOST_ALIKE = 10_000
"""Rows at a place that nothing tells apart."""
FROM_THE_BEGINNING = "Leave `after` out to begin at the first page."
Place = tuple[str | None, ...]


class Paging:
    """The pages of what is wanted of a table whose rows `key` tells apart, several of one key unless it is `unique`.

    `choose` first, which says what to read, then `page`, with what was read so.
    """

    def __init__(self, wanted: Wanted, key: Sequence[str], *, unique: bool) -> None:
        self._wanted, self._key, self._unique = wanted, tuple(key), unique and bool(key)
        self._order: tuple[str, ...] = ()
        self._start: Place = ()
        self._passed = 0

    def choose(self, schema: pa.Schema) -> Selection:
        """What to read of a table with these columns: one row more than is wanted, and those at the place of the last page's
        end that were in it. Misasked for columns it has not, and values they do not hold."""
        conditions = [condition_of(one, schema) for one in (*self._of_key(), *self._wanted.filters)]
        self._order = self._ordered(schema)
        self._start, self._passed = _place(self._wanted.after, len(self._order))
        start = tuple(_started(text, schema.field(name).type) for text, name in zip(self._start, self._order, strict=False))
        return Selection(tuple(conditions), self._order, start, self._wanted.limit + self._passed + 1)

    def page(self, rows: pa.Table) -> Page:
        """The rows of the page. A row that was in the page before may have gone meanwhile: none is left out for it."""
        places = [tuple(place_text(value) for value in row) for row in zip(*(rows[n] for n in self._order), strict=True)]
        before = min(self._passed, sum(1 for _ in takewhile(lambda place: place == self._start, places)))
        end = before + self._wanted.limit
        page = rows.slice(before, self._wanted.limit)
        if rows.num_rows <= end:
            return Page(page, None)
        last = places[end - 1]
        alike = sum(1 for _ in takewhile(lambda place: place == last, reversed(places[:end])))
        return Page(page, _told(last, alike))

    def _of_key(self) -> list[Filter]:
        wanted = self._wanted.key
        if not wanted:
            return []
        if len(wanted) != len(self._key):
            columns = ", ".join(self._key)
            raise Misasked(
                f"the key has {len(self._key)} columns ({columns}), not {len(wanted)}"
                if self._key
                else "the table has no key that is known",
                next_step="Give a value for each, in this order." if self._key else "Ask for its rows by filters.",
            )
        return [Filter(name, "eq", text) for name, text in zip(self._key, wanted, strict=True)]

    def _ordered(self, schema: pa.Schema) -> tuple[str, ...]:
        """The key, and what tells rows of one key apart."""
        key = tuple(name for name in self._key if name in schema.names and is_comparable(schema.field(name).type))
        if self._unique and len(key) == len(self._key):
            return key
        ours = [name for name in schema.names if SEQUENCE.fullmatch(name)]
        ours += [EVENT_ID] if EVENT_ID in schema.names else []
        others = [f.name for f in schema if is_comparable(f.type) and not pa.types.is_floating(f.type)]
        return tuple(dict.fromkeys((*key, *(ours or others))))


def condition_of(asked: Filter, schema: pa.Schema) -> Condition:
    """A filter with its value in the type of its column."""
    if asked.column not in schema.names:
        raise Misasked(f"there is no column {asked.column!r}", next_step=f"The columns are: {', '.join(schema.names)}.")
    kind = schema.field(asked.column).type
    if asked.operator == "null":
        if asked.text not in NULL:
            raise Misasked(f"{asked.column}[null] is neither true nor false", next_step="Say one of the two.")
        return Condition(asked.column, NULL[asked.text])
    if asked.operator not in OPERATORS:
        known = ", ".join((*OPERATORS, "null"))
        raise Misasked(f"there is no comparison {asked.operator!r}", next_step=f"There are: {known}.")
    if not is_comparable(kind):
        raise Misasked(
            f"column {asked.column!r} is a {kind}, which is compared with nothing",
            next_step="Filter by other columns, or by `[null]`.",
        )
    try:
        return Condition(asked.column, OPERATORS[asked.operator], value_of(asked.text, kind))
    except ValueError:
        raise Misasked(
            f"{asked.text!r} is no {kind}, which column {asked.column!r} is", next_step="Write it as the rows show it."
        ) from None


def _started(text: str | None, kind: pa.DataType) -> pa.Scalar:
    try:
        return place_value(text, kind)
    except ValueError:
        raise _no_place() from None


def _told(place: Place, alike: int) -> str:
    return urlsafe_b64encode(json.dumps([list(place), alike], separators=(",", ":")).encode()).decode().rstrip("=")


def _place(after: str | None, columns: int) -> tuple[Place, int]:
    """The values at which the page before ended, and how many of its last rows have them."""
    if after is None:
        return (), 0
    try:
        values, alike = _parsed(after)
    except (ValueError, TypeError, RecursionError, binascii.Error):
        raise _no_place() from None
    if len(values) != columns or not all(v is None or isinstance(v, str) for v in values):
        raise _no_place()
    if type(alike) is not int or not alike > 0:
        raise _no_place()
    if alike > MOST_ALIKE:
        raise Misasked(
            f"more than {MOST_ALIKE:,} rows cannot be told apart, so there is no next page",
            next_step="Ask for a part of them by filters.",
        )
    return tuple(values), alike


def _parsed(after: str) -> tuple[list[Any], Any]:
    values, alike = json.loads(urlsafe_b64decode(after.encode("ascii") + b"=" * (-len(after) % 4)))
    return list(values), alike


def _no_place() -> Misasked:
    return Misasked("`after` is no place that a page of these rows told", next_step=FROM_THE_BEGINNING)
