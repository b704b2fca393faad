"""A folder as AWS DMS writes it, for contract suites."""

from __future__ import annotations

import gzip
import os
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from replicator.domain.change import RAW
from replicator.domain.position import Position, Span, TopicPartition

BEGIN = datetime(2021, 10, 17, 19, 43, 24, 349_000, UTC)
STARTS = (0, 3, 5, 6, 9, 12, 15, 18, 20, 21)
"""The first row of each file. A file is published at once, and never changed."""
HEADER = b"Op,number,text"


def make_dms_row(number: int) -> bytes:
    """A row. Every second text has line ends, quotes and letters of several bytes."""
    text = f'"é☃ ""{number}"",\r\n\n{number}"' if number % 2 else f"plain {number}"
    return f"I,{number},{text}".encode()


def locate_row(number: int, *, header: bool) -> tuple[str, int, int | None]:
    """The file of row `number`, its offset and its time in milliseconds."""
    file = bisect_right(STARTS, number) - 1
    line = number - STARTS[file] + 1 + header
    if not file:
        return "LOAD0000000A.csv", (10 << 32) + line, None
    moment = BEGIN + timedelta(milliseconds=file)
    time = int(moment.timestamp() * 1000)
    return f"{moment:%Y%m%d-%H%M%S}{time % 1000:03}.csv", (time << 21) + line, time


@dataclass
class DmsFolder:
    """`source_contract.SourceStream`. `publish` writes one row for each record, and ignores its content."""

    path: Path
    source: Any
    options: Mapping[str, Any]
    header: bool = False
    compressed: bool = False
    topic: str = "shop.items"
    partitions: int = 1
    published: int = field(default=0)

    def publish(self, records: pa.Table) -> None:
        folder = self.path / "bucket" / "shop" / "items"
        folder.mkdir(parents=True, exist_ok=True)
        files: dict[Path, bytearray] = {}
        for number in range(self.published, self.published + records.num_rows):
            name, _, _ = locate_row(number, header=self.header)
            file = folder / (f"{name}.gz" if self.compressed else name)
            line = make_dms_row(number) + b"\r\n"
            files.setdefault(file, bytearray(HEADER + b"\n" if self.header else b"")).extend(line)
        for file, text in files.items():
            partial = file.with_suffix(".partial")
            partial.write_bytes(gzip.compress(text) if self.compressed else text)
            set_old_time(partial)
            partial.replace(file)
        self.published += records.num_rows

    def open(self) -> Any:
        said = {"path": str(self.path / "bucket"), "csv": {"header": self.header}, **self.options}
        return self.source(said)

    def close(self) -> None:
        pass


class ReadsDms:
    """The expectations of a `SourceContract` over such folders."""

    odd_times = ()

    def list_expected(self, stream: DmsFolder, start: int, end: int) -> pa.Table:
        rows = []
        for number in range(start, end):
            _, offset, time = locate_row(number, header=stream.header)
            headers = [{"name": "dms.kind", "value": b"load" if time is None else b"cdc"}]
            headers += [{"name": "dms.columns", "value": HEADER}] if stream.header else []
            record = {"topic": stream.topic, "partition": 0, "offset": offset, "timestamp": time}
            rows.append(record | {"headers": headers, "key": None, "value": make_dms_row(number)})
        return pa.Table.from_pylist(rows, RAW)

    def make_whole_span(self, stream: DmsFolder, count: int) -> Span:
        at = TopicPartition(stream.topic, 0)
        first, last = (locate_row(number, header=stream.header)[1] for number in (0, count - 1))
        return Span(Position({at: first}), Position({at: last + 1}))


def set_old_time(path: Path) -> None:
    """Makes the file old, so that a source takes it as complete."""
    os.utime(path, (BEGIN.timestamp(), BEGIN.timestamp()))
