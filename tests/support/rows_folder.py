"""A folder of files with rows, for contract suites."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from replicator.domain.change import RAW
from replicator.domain.position import Position, Span, TopicPartition

WRITTEN = 1_700_000_000
"""The modification time of every file, in seconds."""
STARTS = (0, 3, 5, 6, 9, 12, 15, 18, 20, 21)
"""The first row of each file. A file is published at once, and never changed."""


def make_row_values(number: int) -> dict[str, str | None]:
    """The values of a row. Every second text has line ends, quotes and letters of several bytes. JSON escapes its line
    ends."""
    return {
        "number": str(number),
        "text": f'é☃ "{number}",\r\n\n{number}' if number % 2 else f"plain {number}",
        "none": None,
    }


def encode_rows(rows: list[dict[str, Any]], kind: str, *, delimiter: str = ",") -> bytes:
    """The content of a file of rows. Null is an empty cell without quotes."""
    if kind == "parquet":
        out = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), out)
        return out.getvalue()
    if kind == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows).encode()
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter)
    writer.writerow(rows[0])
    writer.writerows(row.values() for row in rows)
    return out.getvalue().encode()


def write_closed_file(file: Path, content: bytes, *, age: int = 0) -> Path:
    """Writes a file with an old time, so that a source takes it as complete. Compressed if its name ends in `.gz`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"_{file.name}.partial")
    partial.write_bytes(gzip.compress(content) if file.name.endswith(".gz") else content)
    os.utime(partial, (WRITTEN - age, WRITTEN - age))
    partial.replace(file)
    return file


@dataclass
class RowsFolder:
    """`source_contract.SourceStream`. `publish` writes one row for each record, and ignores its content."""

    path: Path
    source: Any
    options: Mapping[str, Any]
    kind: str = "csv"
    compressed: bool = False
    topic: str = "items"
    partitions: int = 1
    published: int = field(default=0)

    def publish(self, records: pa.Table) -> None:
        (self.path / "feed" / self.topic).mkdir(parents=True, exist_ok=True)
        files: dict[int, list[dict[str, Any]]] = {}
        for number in range(self.published, self.published + records.num_rows):
            files.setdefault(bisect_right(STARTS, number), []).append(make_row_values(number))
        for file, rows in files.items():
            name = f"part-{file:04}.{self.kind}{'.gz' if self.compressed else ''}"
            write_closed_file(self.path / "feed" / self.topic / name, encode_rows(rows, self.kind))
        self.published += records.num_rows

    def open(self) -> Any:
        return self.source({"path": str(self.path / "feed"), "files": self.kind, "format": "rows", **self.options})

    def close(self) -> None:
        pass

    def offset(self, number: int) -> int:
        file = bisect_right(STARTS, number)
        line = number - STARTS[file - 1] + 1
        return (file << 30) + line + (self.kind == "csv")


class ReadsRowFiles:
    """The expectations of a `SourceContract` over such folders."""

    odd_times = ()

    def list_expected(self, stream: RowsFolder, start: int, end: int) -> pa.Table:
        rows = []
        for number in range(start, end):
            said: dict[str, Any] = make_row_values(number)
            if stream.kind == "parquet":
                said = {"schema": dict.fromkeys(said, "string"), "payload": said}
            value = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
            record = {"topic": stream.topic, "partition": 0, "offset": stream.offset(number), "value": value}
            rows.append(record | {"timestamp": WRITTEN * 1000, "headers": None, "key": None})
        return pa.Table.from_pylist(rows, RAW)

    def make_whole_span(self, stream: RowsFolder, count: int) -> Span:
        at = TopicPartition(stream.topic, 0)
        first, last = stream.offset(0), stream.offset(count - 1)
        return Span(Position({at: first}), Position({at: last + 1}))
