"""A shop whose transactions change orders and their items together, as Debezium's PostgreSQL connector sends it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa

from replicator.domain.change import RAW
from replicator.domain.position import Position, TopicPartition
from replicator.testing.fakes import FakeSource

COLUMNS = {
    "orders": {"id": "int64", "items": "int64", "total": "int64", "note": "string"},
    "order_items": {"id": "int64", "order_id": "int64", "price": "int64"},
    "customers": {"id": "int64", "name": "string"},
}
MARKS = "cdc.transaction"
PARTITIONS = 3
UNSENT = "__debezium_unavailable_value"
"""Replaces the note of a changed order. A write with it cannot be combined with an earlier write that deletes."""
Rows = dict[str, dict[int, dict[str, Any]]]


def encode_with_schema(payload: Any, schema: Any) -> bytes:
    return json.dumps({"schema": schema, "payload": payload}).encode()


def make_row_schema(table: str, name: str) -> dict[str, Any]:
    fields = [{"field": n, "type": t, "optional": n != "id"} for n, t in COLUMNS[table].items()]
    return {"type": "struct", "fields": fields, "optional": True, "name": f"cdc.public.{table}.Value", "field": name}


def make_envelope_schema(table: str) -> dict[str, Any]:
    strings = ("connector", "schema", "table", "sequence")
    source = [{"field": n, "type": "string", "optional": True} for n in strings]
    source += [{"field": n, "type": "int64", "optional": True} for n in ("ts_ms", "txId", "lsn")]
    block = [{"field": "id", "type": "string"}, {"field": "total_order", "type": "int64"}]
    return {
        "type": "struct",
        "name": f"cdc.public.{table}.Envelope",
        "fields": [
            make_row_schema(table, "before"),
            make_row_schema(table, "after"),
            {"type": "struct", "fields": source, "name": "io.debezium.connector.postgresql.Source", "field": "source"},
            {"type": "struct", "fields": block, "optional": True, "name": "event.block", "field": "transaction"},
            {"type": "string", "field": "op"},
        ],
    }


SCHEMAS = {table: make_envelope_schema(table) for table in COLUMNS}


class Broker(FakeSource):
    """A topic has all its partitions as soon as it has a record."""

    def end(self) -> Position:
        known = super().end()
        return Position({**{TopicPartition(p.topic, n): 0 for p in known for n in range(PARTITIONS)}, **known})


@dataclass
class Shop:
    """Makes transactions. `log`: the records by topic and partition. `after`: the rows after each transaction, by its
    name. `changes`: the position in each partition behind the changes of a transaction."""

    random: Random
    partitions: int = 1
    rows: Rows = field(default_factory=lambda: {table: {} for table in COLUMNS})
    log: dict[tuple[str, int], list[dict[str, Any]]] = field(default_factory=dict)
    after: dict[str, Rows] = field(default_factory=dict)
    changes: dict[str, Position] = field(default_factory=dict)
    reach: dict[TopicPartition, int] = field(default_factory=dict)
    number: int = 700
    lsn: int = 1000
    ids: int = 0

    def new_id(self) -> int:
        self.ids += 1
        return self.ids

    def put(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        records = self.log.setdefault((topic, partition), [])
        records.append(
            {"topic": topic, "partition": partition, "offset": len(records), "timestamp": None, "key": key, "value": value}
        )

    def mark(self, status: str, events: dict[str, int] | None = None) -> str:
        name = f"{self.number}:{self.lsn}"
        told = events and [{"data_collection": f"public.{t}", "event_count": n} for t, n in events.items()]
        value = {"status": status, "id": name, "event_count": None, "data_collections": told, "ts_ms": self.lsn}
        named = {"type": "struct", "fields": [], "name": "io.debezium.connector.common.TransactionMetadataValue"}
        self.put(
            MARKS, 0, encode_with_schema({"id": name}, {"type": "struct", "fields": []}), encode_with_schema(value, named)
        )
        return name

    def change(self, table: str, op: str, row: dict[str, Any], transaction: bool = True) -> None:
        self.lsn += 1
        source = {"connector": "postgresql", "schema": "public", "table": table, "txId": self.number, "lsn": self.lsn}
        source |= {"ts_ms": self.lsn, "sequence": json.dumps([str(self.number), str(self.lsn)])}
        block = {"id": f"{self.number}:{self.lsn}", "total_order": 1} if transaction else None
        sent = row | {"note": UNSENT} if op == "u" else row
        payload = {"before": row if op == "d" else None, "after": None if op == "d" else sent, "source": source}
        key = {"type": "struct", "fields": [{"type": "int64", "optional": False, "field": "id"}], "name": "k"}
        topic, partition = f"cdc.public.{table}", row["id"] % self.partitions
        value = encode_with_schema({**payload, "transaction": block, "op": op}, SCHEMAS[table])
        self.put(topic, partition, encode_with_schema({"id": row["id"]}, key), value)
        self.reach[TopicPartition(topic, partition)] = len(self.log[topic, partition])
        if op == "d":
            self.put(topic, partition, encode_with_schema({"id": row["id"]}, key), None)
            del self.rows[table][row["id"]]
        else:
            self.rows[table][row["id"]] = row

    def transaction(self, changes: list[tuple[str, str, dict[str, Any]]], halfway: Callable[[], None] = lambda: None) -> str:
        """Makes one transaction of these changes, and returns its name. `halfway` runs when a part of it is in the log."""
        self.number += 1
        self.mark("BEGIN")
        events: dict[str, int] = {}
        for number, (table, op, row) in enumerate(changes):
            if number == len(changes) // 2:
                halfway()
            self.change(table, op, row)
            events[table] = events.get(table, 0) + 1
        self.lsn += 1
        name = self.mark("END", events)
        self.after[name] = {table: dict(rows) for table, rows in self.rows.items()}
        self.changes[name] = Position(dict(self.reach))
        return name

    def new_order(self, items: int) -> list[tuple[str, str, dict[str, Any]]]:
        order = self.new_id()
        lines = [{"id": self.new_id(), "order_id": order, "price": self.random.randrange(100)} for _ in range(items)]
        whole = {"id": order, "items": items, "total": sum(line["price"] for line in lines), "note": f"order {order}"}
        changes = [("orders", "c", whole), *(("order_items", "c", line) for line in lines)]
        self.random.shuffle(changes)
        return changes

    def another_line(self, order: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
        line = {"id": self.new_id(), "order_id": order["id"], "price": 7}
        whole = order | {"items": order["items"] + 1, "total": order["total"] + 7}
        return [("order_items", "c", line), ("orders", "u", whole)]

    def list_cancelled(self, order: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
        lines = [line for line in self.rows["order_items"].values() if line["order_id"] == order["id"]]
        return [*(("order_items", "d", line) for line in lines), ("orders", "d", order)]

    def anything(self) -> str:
        orders = list(self.rows["orders"].values())
        pick = self.random.randrange(6) if orders else 0
        if pick <= 2:
            return self.transaction(self.new_order(self.random.randint(1, 5)))
        if pick == 3:
            return self.transaction([("customers", "c", {"id": self.new_id(), "name": "x"})])
        order = self.random.choice(orders)
        return self.transaction(self.another_line(order) if pick == 4 else self.list_cancelled(order))

    def snapshot(self) -> None:
        """Adds snapshot rows."""
        for _ in range(3):
            self.change("customers", "r", {"id": self.new_id(), "name": "old"}, transaction=False)
            for table, _, row in self.new_order(2):
                self.change(table, "r", row, transaction=False)

    def pieces(self, largest: int = 7, since: Mapping[tuple[str, int], int] | None = None) -> list[pa.Table]:
        """All records, or those after `since`, in batches. Partitions mix at random; each is in its order."""
        left = {place: records[(since or {}).get(place, 0) :] for place, records in self.log.items()}
        left = {place: records for place, records in left.items() if records}
        flat: list[dict[str, Any]] = []
        while left:
            partition = self.random.choice(list(left))
            count = self.random.randint(1, 6)
            flat += left[partition][:count]
            del left[partition][:count]
            left = {p: records for p, records in left.items() if records}
        out = []
        while flat:
            count = self.random.randint(1, largest)
            out.append(make_frame(flat[:count]))
            flat = flat[count:]
        return out


def make_frame(records: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([{"headers": None, **record} for record in records], RAW)
