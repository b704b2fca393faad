"""Rows of Parquet files as raw batches that fit in memory, however well the file is compressed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from ...arrow.parquet_slices import ParquetSlices
from .archive_records import LineTooLong, unreadable_record
from .batch_builder import RecordColumns
from .file_format import FileFormat
from .file_list import ArchiveFile
from .line_reader import LONGER

MIN_BUDGET_BYTES = 1 << 20
"""Minimum bytes of text per read, even if `record_limits.message_bytes` is less."""


def read_frames(
    file: ArchiveFile, reader: pq.ParquetFile, form: FileFormat, most: int, groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """The raw batches of an accepted file, or of some consecutive row groups, with at most `most` rows each. A row longer
    than a line may be is rejected."""
    budget = max(form.longest // LONGER, MIN_BUDGET_BYTES)
    first = 1 + sum(reader.metadata.row_group(group).num_rows for group in range(groups[0] if groups else 0))
    slices = ParquetSlices(reader, file.open_parquet, budget, most, groups=groups)
    for rows, size in slices.read(form.longest):
        if size > form.longest:
            yield _reject_row(file, first, size, form.longest)
        else:
            yield form.frame(file, slices.unpack(rows), first)
        first += rows.num_rows


def _reject_row(file: ArchiveFile, number: int, size: int, longest: int) -> pa.RecordBatch:
    why = f"the row has {size} bytes of text, more than {longest}, which is {LONGER} times limits.message_bytes"
    gathered = RecordColumns()
    gathered.add(unreadable_record(file.label, number, b"", LineTooLong(why)))
    return gathered.to_batch()
