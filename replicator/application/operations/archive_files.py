"""Archive files: recorded topics as JSON Lines or Parquet, the format that `transport: archive` reads."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.domain.event_log import encode_bytes
from replicator.domain.plain_values import format_count
from replicator.local_files import write_whole
from replicator.ports.frames import Batch
from replicator.ports.source import Source

PARQUET = ".parquet"
GZIP = ".jsonl.gz"
SUFFIXES = (".jsonl", GZIP, PARQUET)


class ArchiveWriter(Protocol):
    """Writes records, one raw frame at a time, in the offset order of each partition."""

    def write(self, records: pa.Table) -> None:
        """Append the records."""


@contextmanager
def open_archive(path: Path) -> Iterator[ArchiveWriter]:
    """Write one archive file. Its suffix selects the format: `.jsonl`, `.jsonl.gz` or `.parquet`.

    At the end of the block the file exists whole and durable, or not at all. ConfigProblem for another suffix.
    """
    if not path.name.endswith(SUFFIXES):
        step = f"Use one of these suffixes: {', '.join(SUFFIXES)}."
        raise ConfigProblem(f"{path} is not the name of an archive file", next_step=step)
    with write_whole(path) as partial:
        if path.name.endswith(PARQUET):
            with pq.ParquetWriter(partial, RAW) as writer:
                yield _ParquetWriter(writer)
        else:
            with gzip.open(partial, "wb") if path.name.endswith(GZIP) else partial.open("wb") as stream:
                yield JsonLinesWriter(stream)


class _ParquetWriter:
    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer = writer

    def write(self, records: pa.Table) -> None:
        self._writer.write_table(records.select(RAW.names).cast(RAW))


class _ByteStream(Protocol):
    def write(self, data: bytes, /) -> int: ...


class JsonLinesWriter:
    """Writes records as JSON Lines to a stream."""

    def __init__(self, stream: _ByteStream) -> None:
        self._stream = stream

    def write(self, records: pa.Table) -> None:
        at = records["timestamp"].cast(pa.int64())
        raw = records.select(RAW.names).set_column(RAW.get_field_index("timestamp"), "timestamp", at)
        for batch in raw.to_batches(max_chunksize=10_000):
            for row in batch.to_pylist():
                row["headers"] = row["headers"] and [[h["name"], encode_bytes(h["value"])] for h in row["headers"]]
                line = msgspec.json.encode({**row, "key": encode_bytes(row["key"]), "value": encode_bytes(row["value"])})
                self._stream.write(line + b"\n")


OpenReader = Callable[[], Source[pa.Table]]


def record_topics(open_reader: OpenReader, topics: Sequence[str], path: Path, note: Callable[[str], None]) -> int:
    """Write all records that the reader of `topics` (names or globs) has now into a new archive file; returns their
    number.

    No position of the pipeline moves. ConfigProblem if the file exists. EnvironmentProblem if no topic matches.
    """
    if path.exists():
        raise ConfigProblem(f"{path} already exists", next_step="Name another file, or remove it.")
    reader = open_reader()
    stop, written = threading.Event(), 0
    try:
        start = reader.start()
        with open_archive(path) as archive:

            def write(batch: Batch[pa.Table]) -> None:
                nonlocal written
                archive.write(batch.frame)
                written += batch.frame.num_rows
                note(format_count(written, "record"))

            reader.run(start, write, stop, once=True)
            if not written and not reader.end():
                names = ", ".join(topics)
                step = "`replicator doctor` lists the existing topics."
                raise EnvironmentProblem(f"No topic matches {names}.", next_step=step)
    finally:
        reader.close()
    return written
