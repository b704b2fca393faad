"""Change events of one table as Debezium's connector sends them. Reads the slot with SQL."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa

from replicator.domain.change import RAW

TOPIC, OF_MARKS = "cdc.public.items", "cdc.transaction"
SINCE_1970 = 946_684_800_000
"""Milliseconds from 1970 to the epoch of PostgreSQL."""
READ = """
SELECT lsn - '0/0'::pg_lsn, data FROM pg_logical_slot_get_binary_changes(
    %s, NULL, NULL, 'proto_version', '1', 'publication_names', 'shop', 'messages', 'true')"""
KINDS = {"id": "int32", "note": "string", "turn": "int32"}
OPS = {b"I": "c", b"U": "u", b"D": "d"}


@dataclass
class Message:
    """The bytes of one message of pgoutput, from left to right."""

    data: bytes
    at: int = 0

    def take(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> int:
        return int(struct.unpack(f">{form}", self.take(struct.calcsize(form)))[0])

    def row(self) -> list[str | None]:
        return [self._value() for _ in range(self.number("h"))]

    def _value(self) -> str | None:
        return self.take(self.number("i")).decode() if self.take(1) == b"t" else None


@dataclass
class SlotReader:
    """`records`: everything sent so far. `marks`: the records of the transaction topic. Like the connector, it counts a
    change's position from the commit before, and starts without a commit."""

    dsn: str
    slot: str
    records: list[dict[str, Any]] = field(default_factory=list)
    marks: list[dict[str, Any]] = field(default_factory=list)
    commit: int | None = None
    tx: tuple[int, int, int] = (0, 0, 0)

    def create(self) -> None:
        self._execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", self.slot)
        self.commit = None

    def drop(self) -> None:
        """Drops the slot. Later changes are lost until there is a slot again."""
        self._execute("SELECT pg_drop_replication_slot(%s)", self.slot)

    def poll(self) -> list[dict[str, Any]]:
        """Returns the new records."""
        known = len(self.records)
        # The slot lacks commits that the server has not written to disk yet.
        self._execute("SELECT pg_logical_emit_message(true, 'test', 'written')")
        for lsn, data in self._execute(READ, self.slot):
            self._take(int(lsn), Message(bytes(data)))
        return self.records[known:]

    def _take(self, lsn: int, message: Message) -> None:
        kind = message.take(1)
        if kind == b"B":
            _, micros, number = message.number("q"), message.number("q"), message.number("I")
            self.tx = number, SINCE_1970 + micros // 1_000, len(self.records)
        elif kind == b"C":
            self.commit = lsn
            self._mark(lsn)
        elif kind in OPS:
            message.number("i")
            images = list(self._images(message))
            row = images[-1]
            before, after = (row, None) if kind == b"D" else (None, row)
            self.records.append(self._record(OPS[kind], before, after, lsn))

    def _mark(self, lsn: int) -> None:
        """Records the end of a transaction that changed the table."""
        number, at, first = self.tx
        count = len(self.records) - first
        if count:
            payload = {"status": "END", "id": f"{number}:{lsn}", "event_count": count, "ts_ms": at}
            payload["data_collections"] = [{"data_collection": "public.items", "event_count": count}]
            self.marks.append({"topic": OF_MARKS, "partition": 0, "offset": len(self.marks), "timestamp": None,
                               "headers": None, "key": None, "value": encode_with_schema(payload, None)})  # fmt: skip

    def _images(self, message: Message) -> Iterator[dict[str, Any]]:
        while message.at < len(message.data):
            message.take(1)
            values = dict(zip(KINDS, message.row(), strict=True))
            yield {n: int(v) if v is not None and KINDS[n] == "int32" else v for n, v in values.items()}

    def _record(self, op: str, before: dict[str, Any] | None, after: dict[str, Any] | None, lsn: int) -> dict[str, Any]:
        commit = None if self.commit is None else str(self.commit)
        source = {"connector": "postgresql", "schema": "public", "table": "items", "lsn": lsn, "ts_ms": 1_700_000_000_000}
        source["txId"] = self.tx[0]
        source["sequence"] = json.dumps([commit, str(lsn)])
        payload = {"before": before, "after": after, "source": source, "op": op}
        key = {"id": (after or before or {})["id"]}
        number = len(self.records)
        return {"topic": TOPIC, "partition": 0, "offset": number, "timestamp": None, "headers": None,
                "key": encode_with_schema(key, KEY), "value": encode_with_schema(payload, ENVELOPE)}  # fmt: skip

    def _execute(self, query: str, *parameters: object) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True, options="-c synchronous_commit=on") as connection:
            return connection.execute(query.encode(), parameters).fetchall()


def encode_with_schema(payload: Any, schema: Any) -> bytes:
    return json.dumps({"schema": schema, "payload": payload}).encode()


def make_fields(names: Sequence[str]) -> list[dict[str, Any]]:
    return [{"field": n, "type": KINDS[n], "optional": n != "id"} for n in names]


def make_struct(inner: list[Any], name: str, of: str = "") -> dict[str, Any]:
    return {"type": "struct", "fields": inner, "optional": True, "name": name, **({"field": of} if of else {})}


def make_plain_fields(kind: str, *names: str) -> list[dict[str, Any]]:
    return [{"field": n, "type": kind, "optional": True} for n in names]


def make_envelope(connector: str, source: list[Any]) -> dict[str, Any]:
    images = [make_struct(make_fields(list(KINDS)), "cdc.public.items.Value", of) for of in ("before", "after")]
    told = make_struct(source, f"io.debezium.connector.{connector}.Source", "source")
    numbers = make_plain_fields("int64", "total_order", "data_collection_order")
    transaction = make_struct([*make_plain_fields("string", "id"), *numbers], "event.block", "transaction")
    op = {"field": "op", "type": "string", "optional": False}
    return make_struct([*images, told, op, transaction], "cdc.public.items.Envelope")


KEY = make_struct(make_fields(["id"]), "k")
SOURCE = [
    *make_plain_fields("string", "connector", "schema", "table", "sequence"),
    *make_plain_fields("int64", "lsn", "ts_ms", "txId"),
]
ENVELOPE = make_envelope("postgresql", SOURCE)


def make_frame(records: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(records), RAW)
