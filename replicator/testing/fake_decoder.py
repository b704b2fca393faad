"""A record format for tests: the value is one row of a changes frame, as an Arrow stream with the name of its table."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pyarrow as pa

from replicator.domain.change import ERROR, OFFSET, PARTITION, TOPIC, changes_schema
from replicator.domain.errors import Fatal, Reject, RejectCode
from replicator.domain.table import Column, TableSpec
from replicator.ports.decoder import ENVELOPE, ROUTE, TABLE_DROPPED

UNREADABLE = str(Reject(RejectCode.MALFORMED, "the value is no Arrow stream that names a table"))
KEYS = b"keys"
DROP = b"drop "
"""The value of a DROP TABLE record starts with this; the table name follows."""


def encode_change(changes: pa.Table, table: TableSpec) -> bytes:
    """One row of a changes frame of `table` as a record value."""
    about = {b"table": table.name.encode(), b"fingerprint": table.fingerprint.encode(), KEYS: "\n".join(table.keys).encode()}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, changes.schema.with_metadata(about)) as writer:
        writer.write_table(changes.replace_schema_metadata(about))
    content: bytes = sink.getvalue().to_pybytes()
    return content


def decode_value(value: bytes | None) -> pa.Table | None:
    """The frame from `encode_change`; None for any other bytes."""
    if value is None:
        return None
    try:
        frame = pa.ipc.open_stream(value).read_all()
        # Altered bytes may still be a stream, with invalid texts or times.
        frame.validate(full=True)
        frame.to_pylist()
        about = {name: text.decode() for name, text in (frame.schema.metadata or {}).items()}
    except (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError):
        return None
    return frame if frame.num_rows == 1 and {KEYS, b"table", b"fingerprint"} <= about.keys() else None


def _read_dropped_table(value: bytes | None) -> str:
    """The table of a DROP TABLE record; empty for any other record."""
    named = value.removeprefix(DROP) if value is not None and value.startswith(DROP) else b""
    return named.decode(errors="ignore")


class FakeDecoder:
    """`ports.decoder.Decoder` for this format."""

    def route(self, raw: pa.Table) -> pa.Table:
        return pa.Table.from_pylist([self._route_value(value) for value in raw["value"].to_pylist()], ROUTE)

    def _route_value(self, value: bytes | None) -> dict[str, str]:
        if value is None:
            return {"ignored": "tombstone"}
        if _read_dropped_table(value):
            return {"ignored": TABLE_DROPPED}
        frame = decode_value(value)
        if frame is None:
            return {"error": UNREADABLE}
        about = frame.schema.metadata
        return {"table": about[b"table"].decode(), "fingerprint": about[b"fingerprint"].decode()}

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        for value in sample["value"].to_pylist():
            frame = decode_value(value)
            if frame is not None:
                sequence = sum(name.startswith("_seq_") for name in frame.column_names)
                frame_names = changes_schema(TableSpec("", (), (), sequence)).names
                columns = [f for f in frame.schema if f.name not in (*frame_names, "_moved_from")]
                keys = tuple(frame.schema.metadata[KEYS].decode().split()) or ()
                described = tuple(Column(f.name, f.type) for f in columns)
                return TableSpec(table, described, keys, sequence, fingerprint, counted=not keys)
        raise Fatal(f"no record of table {table} can be read")

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        rows = [self._decode_record(row, table) for row in raw.to_pylist()]
        return reduce(lambda a, b: pa.concat_tables([a, b]), rows, changes_schema(table).empty_table())

    def _decode_record(self, record: dict[str, Any], table: TableSpec) -> pa.Table:
        frame = decode_value(record["value"])
        schema = changes_schema(table)
        readable = frame is not None and set(schema) <= set(frame.schema)
        row = frame.select(schema.names).to_pylist()[0] if frame is not None and readable else {ERROR: UNREADABLE}
        place = {TOPIC: record["topic"], PARTITION: record["partition"], OFFSET: record["offset"]}
        return pa.Table.from_pylist([row | place], schema)

    def envelope(self, raw: pa.Table) -> pa.Table:
        return pa.Table.from_pylist([self._read_envelope(value) for value in raw["value"].to_pylist()], ENVELOPE)

    def _read_envelope(self, value: bytes | None) -> dict[str, Any]:
        frame = decode_value(value)
        if frame is None:
            dropped = _read_dropped_table(value)
            return {"table": dropped} if dropped else {"error": None if value is None else UNREADABLE}
        return {"table": frame.schema.metadata[b"table"].decode(), "op": frame["_op"][0].as_py()}
