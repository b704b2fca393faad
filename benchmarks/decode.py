"""How fast decoders are beside the fastest plain parser of the same bytes: one core, processor time, in turns.

The records are a history derived from TPC-C (`benchmarks.tpcc`), the same in every format; of the files of DMS those
of changes. A decoder makes the changes frame of every table's records; a plain parser makes Arrow columns of their rows in
the types that it reads (JSON, CSV) or Python objects (Avro), and nothing else: no keys, no order, no rejects. Of JSON it is
also told what reading alone takes, without columns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import msgspec
import pyarrow as pa
from fastavro import schemaless_reader
from pyarrow import csv
from rich.console import Console
from rich.table import Table as Screen

from adapters.decoders.canal_json import CanalJsonDecoder
from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.decoders.dms_csv import DmsCsvDecoder
from adapters.decoders.dts_avro import DtsAvroDecoder
from adapters.decoders.dts_avro.rows import RECORD
from adapters.decoders.maxwell_json import MaxwellJsonDecoder
from benchmarks.tpcc import TABLES, Tpcc, make_raw_frame
from replicator.domain.change import ERROR
from replicator.domain.table import TableSpec
from replicator.ports.decoder import Decoder

DECLARED = {
    "schema": {table.path: dict(table.columns) for table in TABLES.values()},
    "keys": {table.path: list(table.keys) for table in TABLES.values() if table.keys},
}
TO_REACH = {"debezium_json": 0.5, "canal_json": 0.5, "maxwell_json": 0.5, "dms_csv": 0.3, "dts_avro": 0.4}
BATCH = 20_000
"""Records of a frame, as the program decodes them."""

Run = tuple[TableSpec, list[pa.Table]]


@dataclass
class Case:
    """A format: its decoder, and the plain parser beside it, of the frames of one table."""

    decoder: Decoder
    plain: Callable[[TableSpec, pa.Table], object]
    named: str
    reading: Callable[[TableSpec, pa.Table], object] | None = None
    """The first part of `plain`: objects without columns."""


def cases() -> dict[str, Case]:
    return {
        "debezium_json": _json(DebeziumJsonDecoder({}), "debezium_json"),
        "canal_json": _json(CanalJsonDecoder(DECLARED), "canal_json"),
        "maxwell_json": _json(MaxwellJsonDecoder(DECLARED), "maxwell_json"),
        "dts_avro": Case(DtsAvroDecoder(DECLARED), _avro, "fastavro.schemaless_reader"),
        "dms_csv": Case(DmsCsvDecoder(DECLARED), _csv, "pyarrow.csv"),
    }


def measure(transactions: int, rounds: int, names: Sequence[str]) -> dict[str, Any]:
    """Per format records and bytes a second of decoder and parser, and their ratio: the best of so many rounds of each."""
    pa.set_cpu_count(1)
    history = Tpcc(seed=1, warehouses=4, customers=30, items=1000).history(transactions)
    figures: dict[str, Any] = {}
    for name, case in cases().items():
        if name in names:
            changes = [change for change in history if change.tx or name != "dms_csv"]
            figures[name] = _measure(case, make_raw_frame(name, changes), rounds)
    return figures


def _measure(case: Case, raw: pa.Table, rounds: int) -> dict[str, Any]:
    runs = _runs(case.decoder, raw)
    records = sum(frame.num_rows for _, frames in runs for frame in frames)
    size = sum(frame["value"].nbytes for _, frames in runs for frame in frames)
    ours, plain, reading, again = [], [], [], []
    for _ in range(rounds):
        ours.append(_seconds(runs, lambda table, frame: _decode_frame(case.decoder, table, frame)))
        plain.append(_seconds(runs, case.plain))
        reading.append(_seconds(runs, case.reading) if case.reading else 0)
        again.append(_seconds(runs, lambda table, frame: _decode_frame(case.decoder, table, frame)))
    routing = min(_seconds(runs, lambda _, frame: case.decoder.route(frame)) for _ in range(2))
    return {
        "records": records, "bytes": size, "decoder": records / min(ours), "plain": records / min(plain),
        "ratio": min(plain) / min(ours), "named": case.named, "routing": records / routing,
        "of_reading": min(reading) / min(ours) if case.reading else None, "control": min(again) / min(ours),
    }  # fmt: skip


def _decode_frame(decoder: Decoder, table: TableSpec, frame: pa.Table) -> None:
    errors = decoder.decode(frame, table)[ERROR]
    assert errors.null_count == len(errors), errors.drop_null()[0]


def _runs(decoder: Decoder, raw: pa.Table) -> list[Run]:
    """The records by table, in frames as the program makes them; those that are ignored are left out."""
    routes = decoder.route(raw)
    pairs = list(zip(routes["table"].to_pylist(), routes["fingerprint"].to_pylist(), strict=True))
    found = []
    for pair in dict.fromkeys(pair for pair in pairs if pair[0] is not None):
        run = raw.filter(pa.array([one == pair for one in pairs])).combine_chunks()
        spec = decoder.learn(run.slice(0, 10), *pair)
        found.append((spec, [run.slice(start, BATCH) for start in range(0, run.num_rows, BATCH)]))
    return found


def _seconds(runs: Sequence[Run], work: Callable[[TableSpec, pa.Table], object]) -> float:
    began = time.process_time()
    for table, frames in runs:
        for frame in frames:
            work(table, frame)
    return time.process_time() - began


def _json(decoder: Decoder, name: str) -> Case:
    decoders: dict[str, Callable[[bytes], Any]] = {}

    def read(table: TableSpec, frame: pa.Table) -> list[Any]:
        if table.name not in decoders:
            decoders[table.name] = msgspec.json.Decoder(_struct(name, table)).decode
        decode = decoders[table.name]
        return [decode(text) for text in frame["value"].to_pylist()]

    def build_row(table: TableSpec, frame: pa.Table) -> pa.Table:
        rows = _rows(name, read(table, frame))
        columns = zip(*map(msgspec.structs.astuple, rows), strict=True)
        return pa.table({c.name: pa.array(values) for c, values in zip(table.columns, columns, strict=True)})

    return Case(decoder, build_row, "msgspec, typed, and columns", read)


def _rows(name: str, messages: Sequence[Any]) -> list[Any]:
    """The rows that messages are about, after their change or, of one that is gone, before it."""
    if name == "debezium_json":
        return [message.payload.after or message.payload.before for message in messages]
    if name == "canal_json":
        return [row for message in messages for row in message.data]
    return [message.data for message in messages]


def _struct(name: str, table: TableSpec) -> Any:
    """The type of a message: what a program would declare that reads these messages only."""
    kinds = {"int32": int, "int64": int} if name != "canal_json" else {}
    fields: list[Any] = [(c.name, kinds.get(str(c.type), _other(name, c.type)) | None, None) for c in table.columns]
    row: Any = msgspec.defstruct("Row", fields, gc=False)
    if name == "debezium_json":
        source = msgspec.defstruct("Source", [("ts_us", int), ("sequence", str), ("table", str), ("lsn", int)], gc=False)
        block = msgspec.defstruct("Block", [("id", str), ("total_order", int)], gc=False)
        fields = [
            ("before", row | None),
            ("after", row | None),
            ("source", source),
            ("transaction", block | None),
            ("op", str),
        ]
        payload = msgspec.defstruct("Payload", fields, gc=False)
        return msgspec.defstruct("Message", [("payload", payload)], gc=False)
    common = [("database", str), ("table", str), ("type", str)]
    if name == "maxwell_json":
        return msgspec.defstruct(
            "Message", [*common, ("ts", int), ("xid", int), ("data", row), ("old", row | None, None)], gc=False
        )
    return msgspec.defstruct(
        "Message",
        [*common, ("es", int), ("mysqlType", dict[str, str]), ("data", list[row]), ("old", list[row] | None, None)],
        gc=False,
    )


def _other(name: str, arrow: pa.DataType) -> Any:
    if name == "maxwell_json" and pa.types.is_decimal(arrow):
        return float
    return int if name == "debezium_json" and arrow == pa.timestamp("us") else str


def _avro(_: TableSpec, frame: pa.Table) -> list[Any]:
    return [schemaless_reader(BytesIO(value), RECORD, None) for value in frame["value"].to_pylist()]


def _csv(table: TableSpec, frame: pa.Table) -> pa.Table:
    """A file at once, as it lies on the disk, into columns of the same types."""
    text = b"\n".join(frame["value"].to_pylist()) + b"\n"
    names = ["Op", *table.column_names]
    types: dict[str, Any] = {c.name: pa.timestamp("us") if pa.types.is_timestamp(c.type) else c.type for c in table.columns}
    return csv.read_csv(
        pa.BufferReader(text),
        read_options=csv.ReadOptions(column_names=names, use_threads=False),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False),
    )


def show(figures: dict[str, Any]) -> None:
    """A table on the terminal."""
    screen = Screen(title=f"decoding on one core, load {os.getloadavg()[0]:.0f}")
    columns = (
        "format",
        "records",
        "MB",
        "records/s",
        "MB/s",
        "beside",
        "records/s of it",
        "ratio",
        "to reach",
        "of reading",
        "A/A",
        "route/s",
    )
    for column in columns:
        screen.add_column(column, justify="left" if column in ("format", "beside") else "right")
    for name, one in figures.items():
        per_record = one["bytes"] / one["records"]
        screen.add_row(
            name, f"{one['records']:,}", f"{one['bytes'] / 1e6:,.0f}", f"{one['decoder']:,.0f}",
            f"{one['decoder'] * per_record / 1e6:,.0f}", one["named"], f"{one['plain']:,.0f}", f"{one['ratio']:.2f}",
            str(TO_REACH[name]), f"{one['of_reading']:.2f}" if one["of_reading"] else "",
            f"{one['control']:.2f}", f"{one['routing']:,.0f}",
        )  # fmt: skip
    Console(width=170).print(screen)
