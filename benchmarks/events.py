"""Debezium change events as a PostgreSQL connector writes them: JSON with schema, about 2,650 bytes each."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

TABLE = "public.rows"
HEADERS = [
    ("__debezium.context.connectorLogicalName", b"bench"),
    ("__debezium.context.taskId", b"0"),
    ("__debezium.context.connectorName", b"postgresql"),
    ("__debezium.context.runId", b"01a1fa11-61bf-7359-be7a-7cbf2b1221cf"),
]
"""The four context headers that every Debezium message carries."""

COLUMNS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("id", {"type": "int64", "optional": False}),
    ("version", {"type": "int64", "optional": False}),
    ("name", {"type": "string", "optional": False}),
    ("active", {"type": "boolean", "optional": False}),
    ("visits", {"type": "int32", "optional": True}),
    ("rating", {"type": "double", "optional": True}),
    ("updated_at", {"type": "string", "optional": True, "name": "io.debezium.time.ZonedTimestamp", "version": 1}),
    ("note", {"type": "string", "optional": True}),
)
SOURCE = (
    ("version", "string", False),
    ("connector", "string", False),
    ("name", "string", False),
    ("ts_ms", "int64", False),
    ("db", "string", False),
    ("sequence", "string", True),
    ("schema", "string", False),
    ("table", "string", False),
    ("txId", "int64", True),
    ("lsn", "int64", True),
)
BLOCK = (("id", "string", False), ("total_order", "int64", False), ("data_collection_order", "int64", False))
PER_TRANSACTION = 5
START_MS = 1_790_000_000_000
START_LSN = 27_000_000
NAMES = ("Ada Lovelace", "Émile Zola", "Grace Hopper", "Alan Turing", "Kurt Gödel", "Emmy Noether", "Joan Clarke")
NOTE = "order {} was paid in full"


@dataclass
class Stream:
    """`count` changes of `count // 4` keys picked at random: the first of a key is an insert, the others are updates.

    Column `version` is the number of the change from 1. Once all events were taken, `rows` and `checksum` (the sum of
    `version`) say what a target must hold.
    """

    count: int
    seed: int = 7
    latest: dict[int, int] = field(default_factory=dict)

    @property
    def keys(self) -> int:
        """How many keys there are to pick from."""
        return max(1, self.count // 4)

    @property
    def rows(self) -> int:
        """Keys that occurred."""
        return len(self.latest)

    @property
    def checksum(self) -> int:
        """The sum of `version` over the newest row of every key."""
        return sum(self.latest.values())

    def events(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Key, value and timestamp (milliseconds) of every message, in order."""
        key_text, value_text = _templates()
        notes = [NOTE.format(i) for i in range(97)]
        pick, latest = random.Random(self.seed).randrange, self.latest
        for number in range(1, self.count + 1):
            key = pick(self.keys) + 1
            op = "u" if key in latest else "c"
            latest[key] = number
            order = (number - 1) % PER_TRANSACTION + 1
            tx = 1000 + number // PER_TRANSACTION
            lsn = START_LSN + number * 120
            commit = START_LSN + (number - order) * 120
            ms = START_MS + number
            name = NAMES[number % 7]
            value = value_text % (
                key, number, name, "true" if number % 3 else "false", number % 1000, number % 500 / 10,
                number % 60, number % 1_000_000, notes[number % 97], ms, commit, lsn, tx, lsn, tx, lsn, order, order, op, ms,
            )  # fmt: skip
            yield (key_text % key).encode(), value.encode(), ms


def _templates() -> tuple[str, str]:
    row = [{**kind, "field": name} for name, kind in COLUMNS]
    key = _document(_struct([row[0]], "bench.public.rows.Key"), '{"id":%d}')
    return key, _document(_envelope(row), _payload())


def _payload() -> str:
    after = (
        '{"id":%d,"version":%d,"name":"%s","active":%s,"visits":%d,"rating":%s,'
        '"updated_at":"2026-03-01T10:20:%02d.%06dZ","note":"%s"}'
    )
    source = (
        '{"version":"3.5.0.Final","connector":"postgresql","name":"bench","ts_ms":%d,"db":"bench",'
        '"sequence":"[\\"%d\\",\\"%d\\"]","schema":"public","table":"rows","txId":%d,"lsn":%d}'
    )
    block = '{"id":"%d:%d","total_order":%d,"data_collection_order":%d}'
    return f'{{"before":null,"after":{after},"source":{source},"transaction":{block},"op":"%s","ts_ms":%d}}'


def _envelope(row: list[dict[str, Any]]) -> dict[str, Any]:
    fields = [
        {**_struct(row, "bench.public.rows.Value", optional=True), "field": "before"},
        {**_struct(row, "bench.public.rows.Value", optional=True), "field": "after"},
        {**_struct(_plain(SOURCE), "io.debezium.connector.postgresql.Source"), "field": "source"},
        {**_struct(_plain(BLOCK), "event.block", optional=True), "field": "transaction"},
        {"type": "string", "optional": False, "field": "op"},
        {"type": "int64", "optional": True, "field": "ts_ms"},
    ]
    return _struct(fields, "bench.public.rows.Envelope")


def _plain(fields: tuple[tuple[str, str, bool], ...]) -> list[dict[str, Any]]:
    return [{"type": kind, "optional": optional, "field": name} for name, kind, optional in fields]


def _struct(fields: list[dict[str, Any]], name: str, *, optional: bool = False) -> dict[str, Any]:
    return {"type": "struct", "fields": fields, "optional": optional, "name": name}


def _document(schema: dict[str, Any], payload: str) -> str:
    """The JSON text around `payload`, a template whose place holders are filled with `%`."""
    text = json.dumps(schema, separators=(",", ":"), ensure_ascii=False).replace("%", "%%")
    return f'{{"schema":{text},"payload":{payload}}}'
