"""Archive files: recorded topics as JSON Lines or Parquet, the format that `transport: archive` reads."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

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


WriteRecords = Callable[[pa.Table], None]
"""Appends records, one raw frame at a time, in the offset order of each partition."""


@contextmanager
def open_archive(path: Path) -> Iterator[WriteRecords]:
    """Write one new archive file. Its suffix selects the format: `.jsonl`, `.jsonl.gz` or `.parquet`.

    At the end of the block the file exists whole and durable, or not at all. ConfigProblem for another suffix, and if the
    file exists. EnvironmentProblem if it cannot be written.
    """
    if not path.name.endswith(SUFFIXES):
        step = f"Use one of these suffixes: {', '.join(SUFFIXES)}."
        raise ConfigProblem(f"{path} is not the name of an archive file", next_step=step)
    if path.exists():
        raise ConfigProblem(f"{path} already exists", next_step="Name another file, or remove it.")
    try:
        with write_whole(path) as draft:
            if path.name.endswith(PARQUET):
                with pq.ParquetWriter(draft, RAW) as writer:
                    yield lambda records: writer.write_table(records.select(RAW.names).cast(RAW))
            else:
                with gzip.open(draft, "wb") if path.name.endswith(GZIP) else draft.open("wb") as stream:
                    yield partial(write_json_lines, stream.write)
    except OSError as error:
        step = "Name a file in a writable folder, with room on its disk."
        raise EnvironmentProblem(f"{path} cannot be written: {error.strerror or error}", next_step=step) from error


def write_json_lines(write: Callable[[bytes], Any], records: pa.Table) -> None:
    """Write records as JSON Lines to the stream of `write`."""
    at = records["timestamp"].cast(pa.int64())
    raw = records.select(RAW.names).set_column(RAW.get_field_index("timestamp"), "timestamp", at)
    for batch in raw.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            row["headers"] = row["headers"] and [[h["name"], encode_bytes(h["value"])] for h in row["headers"]]
            line = msgspec.json.encode({**row, "key": encode_bytes(row["key"]), "value": encode_bytes(row["value"])})
            write(line + b"\n")


OpenReader = Callable[[], Source[pa.Table]]


def record_topics(open_reader: OpenReader, topics: Sequence[str], path: Path, note: Callable[[str], None]) -> int:
    """Write all records that the reader of `topics` (names or globs) has now into a new archive file; returns their
    number.

    No position of the pipeline moves. Errors: as of `open_archive`. EnvironmentProblem if no topic matches.
    """
    stop, written = threading.Event(), 0
    with open_archive(path) as write_records, closing(open_reader()) as reader:

        def write(batch: Batch[pa.Table]) -> None:
            nonlocal written
            write_records(batch.frame)
            written += batch.frame.num_rows
            note(format_count(written, "record"))

        reader.run(reader.start(), write, stop, once=True)
        if not written and not reader.end():
            names = ", ".join(topics)
            raise EnvironmentProblem(
                f"No topic matches {names}.", next_step="`replicator doctor` lists the existing topics."
            )
    return written
