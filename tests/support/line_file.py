"""A file as Kafka's file sink writes it, for contract suites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from replicator.domain.change import RAW
from replicator.testing.source_contract import make_records


@dataclass
class LineFile:
    """`source_contract.SourceStream`."""

    path: Path
    source: Any
    options: Mapping[str, Any]
    topic: str = "shop.items"
    partitions: int = 1

    def publish(self, records: pa.Table) -> None:
        with self.path.open("ab") as stream:
            stream.writelines((b"null" if value is None else value) + b"\n" for value in records["value"].to_pylist())

    def open(self) -> Any:
        self.path.touch()
        return self.source({"path": str(self.path), "files": "lines", "topic": self.topic, **self.options})

    def close(self) -> None:
        pass


class ReadsLineFile:
    """The expectations of a `SourceContract` over such a file, which holds only values."""

    odd_times = ()

    def list_expected(self, stream: LineFile, start: int, end: int) -> pa.Table:
        rows = make_records(stream, start, end).to_pylist()
        nothing = dict.fromkeys(("timestamp", "headers", "key"))
        return pa.Table.from_pylist([row | nothing for row in rows], RAW)
