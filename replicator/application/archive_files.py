"""Archive files: recorded topics as JSON Lines or Parquet, the format that `transport: archive` reads."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from replicator.domain.archived import written
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem

from .durably import synced

PARQUET = ".parquet"
GZIP = ".jsonl.gz"
SUFFIXES = (".jsonl", GZIP, PARQUET)


class ArchiveWriter(Protocol):
    """Takes records, a raw frame at a time, in the order of each partition's offsets."""

    def write(self, records: pa.Table) -> None:
        """Append the records."""


@contextmanager
def archive_writer(path: Path) -> Iterator[ArchiveWriter]:
    """Write one archive file; its suffix says how: `.jsonl`, `.jsonl.gz` or `.parquet`.

    The file appears whole and durable at the end of the block, or not at all. ConfigProblem for another suffix.
    """
    if not path.name.endswith(SUFFIXES):
        raise ConfigProblem(f"{path} is no name of an archive", next_step=f"End it in one of {', '.join(SUFFIXES)}.")
    partial = path.with_name(f".{path.name}.partial")
    try:
        with _opened(partial, path.name) as writer:
            yield writer
        synced(partial)
        partial.replace(path)
        synced(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _opened(partial: Path, name: str) -> Iterator[ArchiveWriter]:
    if name.endswith(PARQUET):
        with pq.ParquetWriter(partial, RAW) as writer:
            yield _Parquet(writer)
        return
    with gzip.open(partial, "wb") if name.endswith(GZIP) else partial.open("wb") as stream:
        yield JsonLines(stream)


class _Parquet:
    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer = writer

    def write(self, records: pa.Table) -> None:
        self._writer.write_table(records.select(RAW.names).cast(RAW))


class _Writable(Protocol):
    def write(self, data: bytes, /) -> int: ...


class JsonLines:
    """An `ArchiveWriter` of JSON Lines into a stream."""

    def __init__(self, stream: _Writable) -> None:
        self._stream = stream

    def write(self, records: pa.Table) -> None:
        """See `ArchiveWriter.write`."""
        at = records["timestamp"].cast(pa.int64())
        raw = records.select(RAW.names).set_column(RAW.get_field_index("timestamp"), "timestamp", at)
        for batch in raw.to_batches(max_chunksize=10_000):
            for row in batch.to_pylist():
                row["headers"] = row["headers"] and [[h["name"], written(h["value"])] for h in row["headers"]]
                line = msgspec.json.encode({**row, "key": written(row["key"]), "value": written(row["value"])})
                self._stream.write(line + b"\n")
