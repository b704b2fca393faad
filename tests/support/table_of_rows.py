"""A plain Delta table with appends, read as a stream of rows. The expected records are computed independently here."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from adapters.sources.delta_table.source import RowsSource
from replicator.domain.change import RAW
from replicator.domain.out_of_range import FIRST_MS, LAST_MS
from replicator.domain.position import Position, Span, TopicPartition
from replicator.testing.contract import overrides_contract
from replicator.testing.source_contract import ODD_TIMES, make_records

FEED = {"delta.enableChangeDataFeed": "true"}
SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])
VERSION, WHOLE = 1 << 34, 1 << 33


def encode_row(op: str, version: int, row: int, number: int) -> bytes:
    own = {"_op": op, "_version": version, "_order": 1, "_row": row}
    document = {"schema": {"number": "int64", "text": "string"}, "payload": {**own, **make_values(number)}}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def make_values(number: int) -> dict[str, Any]:
    return {"number": number, "text": "é☃" * number}


@dataclass
class RowsStream:
    """Opening it starts with a snapshot of the table."""

    folder: Path | str
    batch_records: int
    changes: str = "appended"
    topic: str = "items"
    partitions: int = 1
    seen: int = 0
    places: list[tuple[int, int, int]] = field(default_factory=list)
    """Version, row number in the version, and time of each record."""

    reached: ClassVar[dict[str, str] | None] = None
    """The storage options of delta-rs."""

    def __post_init__(self) -> None:
        self.path = f"{self.folder}/{self.topic}"
        DeltaTable.create(self.path, SCHEMA, configuration=FEED, storage_options=self.reached)

    def publish(self, records: pa.Table) -> None:
        """Makes a commit for every four rows, with the time of the first. With odd times, makes one for every row."""
        times = records["timestamp"].cast(pa.int64()).to_pylist()
        count = 4 if max(times) - min(times) < 1000 else 1
        for start in range(0, len(times), count):
            self._commit(times[start], len(times[start : start + count]))

    def _commit(self, at: int, count: int) -> None:
        start = len(self.places)
        rows = [make_values(n) for n in range(start, start + count)]
        write_deltalake(self.path, pa.Table.from_pylist(rows, SCHEMA), mode="append", storage_options=self.reached)
        version = self.version()
        self.places += [(version, i, at) for i in range(count)]
        entry = f"_delta_log/{version:020}.json"
        lines = [json.loads(line) for line in self.text(entry).splitlines()]
        info = next(line["commitInfo"] for line in lines if "commitInfo" in line)
        info["timestamp"] = at
        self.write(entry, "".join(json.dumps(line) + "\n" for line in lines))

    def text(self, file: str) -> str:
        return (Path(self.path) / file).read_text()

    def write(self, file: str, text: str) -> None:
        (Path(self.path) / file).write_text(text)

    def table(self, version: int | None = None) -> DeltaTable:
        return DeltaTable(self.path, version=version, storage_options=self.reached)

    def version(self) -> int:
        return self.table().version()

    def options(self) -> dict[str, Any]:
        return {
            "format": "rows",
            "path": self.path,
            "batch_records": self.batch_records,
            "changes": self.changes,
        }

    def open(self) -> Any:
        self.seen = self.version()
        return RowsSource(self.options())

    def close(self) -> None:
        pass

    def list_expected_records(self, start: int, end: int) -> pa.Table:
        """Rows of the opening snapshot as reads, in their order of arrival. Later rows as creates."""
        rows, whole = [], self._whole()
        at_sight = next((at for version, _, at in self.places if version == self.seen), None)
        for number in range(start, end):
            version, row, at = self.places[number]
            known = number in whole
            version, row, at = (self.seen, whole[number], at_sight) if known else (version, row, at)
            value = encode_row("r" if known else "c", version, row, number)
            offset = version * VERSION + (WHOLE if known else 0) + row
            rows.append({"topic": self.topic, "partition": 0, "offset": offset, "timestamp": at, "value": value})
        return pa.Table.from_pylist(rows, RAW)

    def _whole(self) -> dict[int, int]:
        numbers = sorted(self.table(self.seen).to_pyarrow_table()["number"].to_pylist())
        return {number: row for row, number in enumerate(numbers)}

    def span(self) -> Span:
        place = TopicPartition(self.topic, 0)
        start, end = self.seen * VERSION + WHOLE, (self.version() + 1) * VERSION
        return Span(Position({place: start}), Position({place: end}))


class ReadsRows:
    """Mixin of the source's contract suite."""

    @overrides_contract(reason="rows of a table as it is have the time of its version: those of changes are looked at")
    def test_odd_times_are_null(self) -> None:
        """A time that no target can store is null. Its record is delivered."""
        stream = self.new_stream()
        sent = make_records(stream, 0, len(ODD_TIMES))
        times = pa.array(ODD_TIMES, RAW.field("timestamp").type)
        stream.publish(sent.set_column(RAW.get_field_index("timestamp"), RAW.field("timestamp"), times))
        source = stream.open()
        reader = self.read_once(source, source.beginning())
        kept = [times[i].as_py() if FIRST_MS <= at <= LAST_MS else None for i, at in enumerate(ODD_TIMES)]
        assert [row["timestamp"] for row in reader.rows] == kept

    def list_expected(self, stream: RowsStream, start: int, end: int) -> pa.Table:
        return stream.list_expected_records(start, end)

    def make_whole_span(self, stream: RowsStream, count: int) -> Span:
        return stream.span()
