"""Record headers of DMS rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ...arrow.frame_slices import select_records
from ..common.dms_rows import COLUMNS, KIND, LOAD
from ..json.headers import read_values

ROWS = 65_536
"""Records per slice of a frame. Slices are long, because work per slice and column is small."""


def mask_load_records(headers: pa.Array) -> pa.Array:
    """True for records of a full load."""
    return pc.fill_null(pc.equal(read_values(headers, KIND), LOAD.encode()), False)


def group_by_header(headers: pa.Array) -> Iterator[tuple[bytes | None, Sequence[int]]]:
    """Every header row, or None, with the indices of its records."""
    found = read_values(headers, COLUMNS)
    if found.null_count == len(found):
        if len(found):
            yield None, range(len(found))
        return
    encoded = found.dictionary_encode("encode")
    several = encoded.dictionary.to_pylist()
    for index, header in enumerate(several):
        places = range(len(found)) if len(several) == 1 else pc.indices_nonzero(pc.equal(encoded.indices, index)).to_pylist()
        yield header, places


def select_part(raw: pa.RecordBatch, places: Sequence[int]) -> pa.RecordBatch:
    """The records at `places`, which must be in order."""
    return raw if len(places) == raw.num_rows else select_records(raw, list(places))
