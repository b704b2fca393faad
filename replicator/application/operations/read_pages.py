"""Pages of rows: filters and order of a request, and the start of the next page."""

from __future__ import annotations

import binascii
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import pyarrow as pa

from replicator.domain.plain_values import format_count
from replicator.domain.policy.plan import EVENT_ID
from replicator.domain.read_query import (
    InvalidReadQuery,
    Operator,
    ReadCondition,
    ReadQuery,
    from_place_text,
    is_comparable,
    parse_value,
    to_place_text,
)
from replicator.ports.read_side import Filter, Page, PageRequest

OPERATORS: Mapping[str, Operator] = {"eq": "=", "ne": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
"""The operators by their names in filters. There is also `null`, with `true` or `false`."""
NULL_OPERATORS: Mapping[str, Operator] = {"true": "is null", "false": "is not null"}
SEQUENCE = re.compile(r"_cdc_seq_\d+")
MAX_EQUAL_ROWS = 10_000
"""Maximum rows with equal values in all order columns."""
FROM_THE_BEGINNING = "Leave `after` out to begin at the first page."
PagePlace = tuple[str | None, ...]


class PageQuery:
    """The pages of a request to a table with this `key`. Several rows may share one key unless it is `unique`.

    Call `build_query` first, read the rows of its query, then call `make_page` with them.
    """

    def __init__(self, wanted: PageRequest, key: Sequence[str], *, unique: bool) -> None:
        self._wanted, self._key, self._unique = wanted, tuple(key), unique and bool(key)
        self._order: tuple[str, ...] = ()
        self._start: PagePlace = ()
        self._passed = 0

    def build_query(self, schema: pa.Schema) -> ReadQuery:
        """The query for a table with these columns: one row more than the page, plus the rows of the last page that
        share its end.

        InvalidReadQuery for unknown columns, and for values of another type than the column.
        """
        conditions = [to_condition(one, schema) for one in (*self._make_key_filters(), *self._wanted.filters)]
        self._order = self._list_order_columns(schema)
        self._start, self._passed = _decode_place(self._wanted.after, len(self._order))
        start = tuple(
            _parse_start(text, schema.field(name).type) for text, name in zip(self._start, self._order, strict=False)
        )
        return ReadQuery(tuple(conditions), self._order, start, self._wanted.limit + self._passed + 1)

    def make_page(self, rows: pa.Table) -> Page:
        """The rows of the page. Rows of the last page may be gone meanwhile; then nothing is skipped for them."""
        # A page starts at values, not at a row number: rows that were inserted or deleted meanwhile would shift all others.
        places = [tuple(to_place_text(value) for value in row) for row in zip(*(rows[n] for n in self._order), strict=True)]
        before = min(self._passed, sum(1 for _ in takewhile(lambda place: place == self._start, places)))
        end = before + self._wanted.limit
        page = rows.slice(before, self._wanted.limit)
        if rows.num_rows <= end:
            return Page(page, None)
        last = places[end - 1]
        alike = sum(1 for _ in takewhile(lambda place: place == last, reversed(places[:end])))
        return Page(page, _encode_place(last, alike))

    def _make_key_filters(self) -> list[Filter]:
        wanted = self._wanted.key
        if not wanted:
            return []
        if len(wanted) != len(self._key):
            columns = ", ".join(self._key)
            raise InvalidReadQuery(
                f"the key has {format_count(len(self._key), 'column')} ({columns}), not {len(wanted)}"
                if self._key
                else "the key of the table is unknown",
                next_step="Pass a value for each column, in this order." if self._key else "Use filters to select rows.",
            )
        return [Filter(name, "eq", text) for name, text in zip(self._key, wanted, strict=True)]

    def _list_order_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        """The key, and the columns that distinguish rows with the same key."""
        key = tuple(name for name in self._key if name in schema.names and is_comparable(schema.field(name).type))
        if self._unique and len(key) == len(self._key):
            return key
        ours = [name for name in schema.names if SEQUENCE.fullmatch(name)]
        ours += [EVENT_ID] if EVENT_ID in schema.names else []
        others = [f.name for f in schema if is_comparable(f.type) and not pa.types.is_floating(f.type)]
        return tuple(dict.fromkeys((*key, *(ours or others))))


def to_condition(filter_: Filter, schema: pa.Schema) -> ReadCondition:
    """A filter whose value has the type of its column."""
    if filter_.column not in schema.names:
        raise InvalidReadQuery(
            f"there is no column {filter_.column!r}", next_step=f"The columns are: {', '.join(schema.names)}."
        )
    kind = schema.field(filter_.column).type
    if filter_.operator == "null":
        if filter_.text not in NULL_OPERATORS:
            raise InvalidReadQuery(
                f"{filter_.column}[null] is neither true nor false", next_step="Write [null]=true or [null]=false."
            )
        return ReadCondition(filter_.column, NULL_OPERATORS[filter_.text])
    if filter_.operator not in OPERATORS:
        known = ", ".join((*OPERATORS, "null"))
        raise InvalidReadQuery(f"there is no comparison {filter_.operator!r}", next_step=f"There are: {known}.")
    if not is_comparable(kind):
        raise InvalidReadQuery(
            f"column {filter_.column!r} is a {kind}, which cannot be compared",
            next_step="Filter by other columns, or by `[null]`.",
        )
    try:
        return ReadCondition(filter_.column, OPERATORS[filter_.operator], parse_value(filter_.text, kind))
    except ValueError:
        raise InvalidReadQuery(
            f"{filter_.text!r} does not fit type {kind} of column {filter_.column!r}",
            next_step="Write the value as the rows show it.",
        ) from None


def _parse_start(text: str | None, kind: pa.DataType) -> pa.Scalar:
    try:
        return from_place_text(text, kind)
    except ValueError:
        raise _make_place_error() from None


def _encode_place(place: PagePlace, alike: int) -> str:
    return urlsafe_b64encode(json.dumps([list(place), alike], separators=(",", ":")).encode()).decode().rstrip("=")


def _decode_place(after: str | None, columns: int) -> tuple[PagePlace, int]:
    """The values at the end of the page before, and the number of its last rows that have these values."""
    if after is None:
        return (), 0
    try:
        values, alike = _parse_place(after)
    except (ValueError, TypeError, RecursionError, binascii.Error):
        raise _make_place_error() from None
    if len(values) != columns or not all(v is None or isinstance(v, str) for v in values):
        raise _make_place_error()
    if type(alike) is not int or not alike > 0:
        raise _make_place_error()
    if alike > MAX_EQUAL_ROWS:
        raise InvalidReadQuery(
            f"more than {MAX_EQUAL_ROWS:,} rows are equal, so there is no next page",
            next_step="Use filters to select fewer rows.",
        )
    return tuple(values), alike


def _parse_place(after: str) -> tuple[list[Any], Any]:
    values, alike = json.loads(urlsafe_b64decode(after.encode("ascii") + b"=" * (-len(after) % 4)))
    return list(values), alike


def _make_place_error() -> InvalidReadQuery:
    return InvalidReadQuery("`after` is not from a page of these rows", next_step=FROM_THE_BEGINNING)
