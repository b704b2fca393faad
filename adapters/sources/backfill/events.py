"""Rows as change events of Debezium's connectors, in Connect's JSON with schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .database import Column, Log, Moment, Table

SOURCE = (
    ("version", "string", False),
    ("connector", "string", False),
    ("name", "string", False),
    ("ts_ms", "int64", False),
    ("snapshot", "string", True),
    ("db", "string", False),
    ("sequence", "string", True),
    ("ts_us", "int64", True),
)
"""What source blocks of all connectors begin with."""
TRANSACTION = (("id", "string", False), ("total_order", "int64", False), ("data_collection_order", "int64", False))
NAME = "replicator.backfill"


class Events:
    """The records of one table."""

    def __init__(self, table: Table[Any], log: Log) -> None:
        self._table, self._log = table, log
        name = f"{NAME}.{table.schema}.{table.name}"
        row = [_field(column) for column in table.columns]
        key = [_field(column) for column in table.key_columns]
        source = _struct(_plain((*SOURCE, *log.fields)), f"io.debezium.connector.{log.name}.Source", field="source")
        envelope = [
            _struct(row, f"{name}.Value", field="before"),
            _struct(row, f"{name}.Value", field="after"),
            {**source, "optional": False},
            _struct(_plain(TRANSACTION), "event.block", field="transaction"),
            *_plain((("op", "string", False), ("ts_ms", "int64", True))),
        ]
        self._key_head = _text({"schema": _struct(key, f"{name}.Key", optional=False)})[:-1] + ',"payload":'
        self._head = _text({"schema": _struct(envelope, f"{name}.Envelope", optional=False)})[:-1] + ',"payload":{'

    def key(self, columns: str) -> bytes:
        """A record's key, of the JSON text of its columns."""
        return f"{self._key_head}{columns}}}".encode()

    def read(self, row: str, moment: Moment) -> bytes:
        """A row that was read."""
        return f'{self._head}"before":null,"after":{row},{self._tail("r", moment)}}}}}'.encode()

    def deleted(self, columns: str, moment: Moment) -> bytes:
        """A row that is not there at that moment, of its key's columns."""
        return f'{self._head}"before":{columns},"after":null,{self._tail("d", moment)}}}}}'.encode()

    def _tail(self, op: str, moment: Moment) -> str:
        source = {
            "version": "1",
            "connector": self._log.name,
            "name": NAME,
            "ts_ms": moment.micros // 1_000,
            "snapshot": "true" if op == "r" else "false",
            "db": self._table.database,
            "sequence": None,
            "ts_us": moment.micros,
            **dict.fromkeys(name for name, _, _ in self._log.fields),
            **self._log.block(self._table, moment),
        }
        transaction = self._log.transaction(moment) if op == "d" else None
        return f'"source":{_text(source)},"transaction":{_text(transaction)},"op":"{op}","ts_ms":{moment.micros // 1_000}'


def _field(column: Column) -> dict[str, Any]:
    return {**column.schema, "optional": not column.required, "field": column.name}


def _plain(fields: Sequence[tuple[str, str, bool]]) -> list[dict[str, Any]]:
    return [{"type": kind, "optional": optional, "field": name} for name, kind, optional in fields]


def _struct(fields: Sequence[Any], name: str, *, field: str = "", optional: bool = True) -> dict[str, Any]:
    made = {"type": "struct", "fields": list(fields), "optional": optional, "name": name}
    return {**made, "field": field} if field else made


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
