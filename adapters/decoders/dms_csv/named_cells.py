"""Records of one layout as columns by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from replicator.domain.errors import Reject

from ..common.csv_dialect import CsvDialect
from .cells import split_rows
from .headers import select_part
from .layouts import CsvLayout

NamedCells = tuple[list[int] | None, pa.RecordBatch, Mapping[str, pa.Array]]
"""Indices of records in their slice (None: all), the records, and their columns as text."""


def read_named_cells(
    raw: pa.RecordBatch, places: Sequence[int], layout: CsvLayout, dialect: CsvDialect, errors: dict[int, Reject]
) -> Iterator[NamedCells]:
    """The records of `raw` at `places`, one part per row width. Adds records without this layout to `errors` by index."""
    if layout.error is not None:
        errors |= dict.fromkeys(places, layout.error)
        return
    mine = select_part(raw, places)
    found = split_rows(mine.column("value"), layout.widths, dialect)
    errors |= {places[i]: reject for i, reject in found.errors.items()}
    for cells in found.parts:
        rows = select_part(mine, cells.places)
        where = None if rows.num_rows == raw.num_rows else [places[i] for i in cells.places]
        yield where, rows, dict(zip(layout.get_names(len(cells.columns)), cells.columns, strict=True))
