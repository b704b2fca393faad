"""Formats of snapshot files: Parquet, or text with declared columns."""

from __future__ import annotations

from os import SEEK_END
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from replicator.domain.errors import DataLoss

from ...arrow.parquet_slices import ParquetSlices

SLICE_BYTES = 16 << 20
"""Bytes of text that are unpacked at once."""
SLICE_ROWS = 65_536
MAGIC = 4
"""Bytes of the magic number at the start and end of a Parquet file."""


class SnapshotFormat(Protocol):
    """A kind of file. `suffixes`: endings of its file names, the usual one first. `settles`: the file's content does not
    show if it is complete. `most`: the most bytes of an unpacked snapshot."""

    name: str
    suffixes: tuple[str, ...]
    settles: bool
    most: int

    def read(self, file: Path, room: int) -> pa.Table | None:
        """The rows of one file; None if it is incomplete. Raises OSError, SnapshotTooLarge for more than `room` unpacked
        bytes, and DataLoss for invalid content, which names file, row and column, never a value."""


class SnapshotTooLarge(Exception):
    """A file has more bytes than allowed."""


class ParquetFormat:
    """`SnapshotFormat` of Parquet files."""

    name = "Parquet"
    suffixes: tuple[str, ...] = (".parquet",)
    settles = False

    def __init__(self, most: int = 1 << 30) -> None:
        self.most = most

    def read(self, file: Path, room: int) -> pa.Table | None:
        """See `SnapshotFormat.read`: complete when its footer, its last part, was written."""
        if not _has_footer(file):
            return None
        try:
            with pq.ParquetFile(file) as reader:
                return _read_rows(file, reader, room)
        except pa.ArrowException:
            if not _has_footer(file):
                return None  # Replaced in the meantime.
            raise DataLoss(f"{file} {_describe_fault(file)}.", next_step="Write the snapshot again, or remove it.") from None


def _read_rows(file: Path, reader: pq.ParquetFile, room: int) -> pa.Table:
    """All rows. Their size is known before they are unpacked, although the file stores repeated values once."""
    metadata, schema = reader.metadata, reader.schema_arrow
    if len(set(schema.names)) < len(schema.names):
        raise pa.ArrowInvalid("two columns of one name")
    if sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups)) > room:
        raise SnapshotTooLarge
    slices, batches = ParquetSlices(reader, lambda: file, SLICE_BYTES, SLICE_ROWS), []
    for rows, size in slices.read():
        if size > room:
            raise SnapshotTooLarge
        batches.append(_decode_dictionaries(slices.unpack(rows)))
        room -= batches[-1].nbytes
        if room < 0:
            raise SnapshotTooLarge
    return pa.Table.from_batches(batches, batches[0].schema if batches else schema)


def _decode_dictionaries(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with dictionary columns of the file's own schema decoded."""
    kinds = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in rows.schema]
    return rows.cast(pa.schema([f.with_type(kind) for f, kind in zip(rows.schema, kinds, strict=True)]))


def _has_footer(file: Path) -> bool:
    with file.open("rb") as stream:
        size = stream.seek(0, SEEK_END)
        stream.seek(max(0, size - MAGIC))
        return size > 2 * MAGIC and stream.read() in (b"PAR1", b"PARE")


def _describe_fault(file: Path) -> str:
    try:
        names = pq.read_schema(file).names
    except (pa.ArrowException, OSError):
        names = []
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"has two columns {twice[0]!r}" if twice else "is a whole file and cannot be read as Parquet"


PARQUET: SnapshotFormat = ParquetFormat()
