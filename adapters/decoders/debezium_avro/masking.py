"""Records of tables with private columns as JSON text, which can hold any masked value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ...arrow.frame_slices import split_frame
from ..debezium.masking import DebeziumMasker
from .json_text import AS_TEXT, AvroTextReader

NAMES = ("headers", "key", "value")


def to_masked_text(
    raw: pa.Table,
    reading: AvroTextReader,
    private: DebeziumMasker,
    tables: Sequence[str | None],
    errors: Sequence[str | None],
) -> pa.Table:
    """The records, as text if their table has private columns or is unknown. Each has a table or an error. Unreadable
    keys are dropped, because their content is unknown."""
    topics = raw["topic"].to_pylist()
    named = zip(tables, topics, errors, strict=True)
    wanted = [error is None and private.is_masked(table, topic) for table, topic, error in named]
    if not any(wanted):
        return raw
    rows = raw.select(NAMES).to_pylist()
    start = 0
    for piece in split_frame(raw):
        texts = reading.read_texts(piece)
        places = range(piece.num_rows) if texts.places is None else texts.places
        pairs = zip(places, *(texts.raw.column(name).to_pylist() for name in ("key", "value")), strict=True)
        for place, key, value in pairs:
            if wanted[start + place]:
                kept = None if place in texts.of_keys else key
                rows[start + place] = {"headers": _mark_headers(rows[start + place]["headers"]), "key": kept, "value": value}
        start += piece.num_rows
    for name in NAMES:
        field = raw.schema.field(name)
        values = pa.chunked_array([pa.array([row[name] for row in rows], field.type)])
        raw = raw.set_column(raw.column_names.index(name), field, values)
    return raw


def _mark_headers(headers: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    return [*(one for one in headers or () if one["name"] != AS_TEXT), {"name": AS_TEXT, "value": b""}]
