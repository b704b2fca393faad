"""Recording a topic into an archive."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from replicator.domain.archived import written
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem


def write_archive(table: pa.Table, path: Path | str) -> None:
    """Write `table` (a raw frame) as one archive file; the suffix says how: `.jsonl`, `.jsonl.gz` or `.parquet`.

    The file appears whole or not at all, and is safe from a crash when this returns. Raises ConfigProblem for another
    suffix.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    if path.name.endswith(".parquet"):
        pq.write_table(table.select(RAW.names).cast(RAW), partial)
    elif path.name.endswith(".jsonl.gz"):
        with gzip.open(partial, "wb") as stream:
            stream.writelines(_lines(table))
    elif path.name.endswith(".jsonl"):
        with partial.open("wb") as stream:
            stream.writelines(_lines(table))
    else:
        raise ConfigProblem(f"{path} does not end in .jsonl, .jsonl.gz or .parquet.")
    _sync(partial)
    partial.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lines(table: pa.Table) -> Iterator[bytes]:
    at = table.column("timestamp").cast(pa.int64())
    raw = table.select(RAW.names).set_column(RAW.get_field_index("timestamp"), "timestamp", at)
    for batch in raw.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            row["headers"] = row["headers"] and [[h["name"], written(h["value"])] for h in row["headers"]]
            yield msgspec.json.encode({**row, "key": written(row["key"]), "value": written(row["value"])}) + b"\n"
