"""Rows of Parquet files as raw batches, some at a time: no more than fit, however small they are in the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from ...arrow.parquet_slices import ParquetSlices
from .batches import Columns
from .form import Form
from .lines import LONGER
from .listing import ArchiveFile
from .records import LineTooLong, unreadable

MIN_BUDGET_BYTES = 1 << 20
"""Bytes of text that are taken at once, even where `limits.message_bytes` is less."""


def frames(
    file: ArchiveFile, reader: pq.ParquetFile, form: Form, most: int, groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """The raw batches of a file that `form` does not refuse, or of some row groups of it, which follow each other: each of
    at most `most` rows. A row longer than lines may be is a reject."""
    budget = max(form.longest // LONGER, MIN_BUDGET_BYTES)
    first = 1 + sum(reader.metadata.row_group(group).num_rows for group in range(groups[0] if groups else 0))
    slices = ParquetSlices(reader, file.parquet, budget, most, groups=groups)
    for rows, size in slices.read(form.longest):
        if size > form.longest:
            yield _reject(file, first, size, form.longest)
        else:
            yield form.frame(file, slices.unpacked(rows), first)
        first += rows.num_rows


def _reject(file: ArchiveFile, number: int, size: int, longest: int) -> pa.RecordBatch:
    why = f"the row has {size} bytes of text, more than {longest}, which is {LONGER} times limits.message_bytes"
    gathered = Columns()
    gathered.put(unreadable(file.label, number, b"", LineTooLong(why)))
    return gathered.frame()
