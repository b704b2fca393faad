"""What transports say of a row beside its bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ...arrow.dms import COLUMNS, KIND, LOAD
from ...arrow.json.headers import values_of
from ...arrow.json.pieces import some

ROWS = 65_536
"""Records per piece of a frame: the work per piece and column is small, so pieces are long."""


def of_load(headers: pa.Array) -> pa.Array:
    """Per record whether it is of a full load."""
    return pc.fill_null(pc.equal(values_of(headers, KIND), LOAD.encode()), False)


def by_columns(headers: pa.Array) -> Iterator[tuple[bytes | None, Sequence[int]]]:
    """Every header row, or None, with the places of the records that have it."""
    found = values_of(headers, COLUMNS)
    if found.null_count == len(found):
        if len(found):
            yield None, range(len(found))
        return
    encoded = found.dictionary_encode("encode")
    several = encoded.dictionary.to_pylist()
    for index, header in enumerate(several):
        places = range(len(found)) if len(several) == 1 else pc.indices_nonzero(pc.equal(encoded.indices, index)).to_pylist()
        yield header, places


def part_of(raw: pa.RecordBatch, places: Sequence[int]) -> pa.RecordBatch:
    """The records at `places`, which are in order."""
    return raw if len(places) == raw.num_rows else some(raw, list(places))
