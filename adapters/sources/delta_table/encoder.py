"""Rows as records: JSON objects with the types of their columns, so that every value survives exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from ...decoders.json.type_names import TypedRowLayout, to_json_values

OWN = ("_op", "_version", "_order", "_row", "_before")
"""Fields of a record besides the columns of its row, which decoder `rows` reads."""


@dataclass(frozen=True)
class RowMetadata:
    """Metadata of rows: operations, and row numbers in the version. `olds`: for updates the index of the old row."""

    version: int
    ops: Sequence[str]
    rows: Sequence[int]
    olds: Mapping[int, int]


def encode_rows(rows: pa.Table, layout: TypedRowLayout, told: RowMetadata, places: Sequence[int]) -> list[bytes]:
    """The records of the rows at `places`. Records of rows in `told.olds` include the old values of changed columns."""
    columns = [to_json_values(rows[field.name], field.type) for field in layout.schema]
    names = layout.schema.names
    encode = msgspec.json.Encoder().encode
    out = []
    for place, op, number in zip(places, told.ops, told.rows, strict=True):
        record: dict[str, Any] = {"_op": op, "_version": told.version, "_order": int(op != "d"), "_row": number}
        old = told.olds.get(place)
        if old is not None:
            changed = (i for i, column in enumerate(columns) if column[old] != column[place])
            record["_before"] = {names[i]: columns[i][old] for i in changed}
        record.update(zip(names, [column[place] for column in columns], strict=True))
        out.append(layout.prefix + encode(record) + b"}")
    return out
