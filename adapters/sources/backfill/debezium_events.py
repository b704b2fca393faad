"""Rows as change events of Debezium's connectors, in Connect's JSON with schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .database import BackfillTable, ConnectorLog, SnapshotPoint, SourceColumn

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
"""The first fields of source blocks of all connectors."""
TRANSACTION = (("id", "string", False), ("total_order", "int64", False), ("data_collection_order", "int64", False))
NAME = "replicator.backfill"


class DebeziumEvents:
    """The records of one table. `name`: of the connector that they name."""

    def __init__(self, table: BackfillTable[Any], log: ConnectorLog, name: str = NAME) -> None:
        self._table, self._log, self._name = table, log, name
        name = f"{NAME}.{table.schema}.{table.name}"
        row = [_to_field(column) for column in table.columns]
        key = [_to_field(column) for column in table.key_columns]
        source = _to_struct(
            _strip_fields((*SOURCE, *log.fields)), f"io.debezium.connector.{log.name}.Source", field="source"
        )
        envelope = [
            _to_struct(row, f"{name}.Value", field="before"),
            _to_struct(row, f"{name}.Value", field="after"),
            {**source, "optional": False},
            _to_struct(_strip_fields(TRANSACTION), "event.block", field="transaction"),
            *_strip_fields((("op", "string", False), ("ts_ms", "int64", True))),
        ]
        self._key_head = _to_text({"schema": _to_struct(key, f"{name}.Key", optional=False)})[:-1] + ',"payload":'
        self._head = _to_text({"schema": _to_struct(envelope, f"{name}.Envelope", optional=False)})[:-1] + ',"payload":{'

    def encode_key(self, columns: str) -> bytes:
        """The key of a record, from the JSON text of its columns."""
        return f"{self._key_head}{columns}}}".encode()

    def encode_read(self, row: str, moment: SnapshotPoint) -> bytes:
        """The event of a row that was read."""
        return f'{self._head}"before":null,"after":{row},{self._encode_tail("r", moment)}}}}}'.encode()

    def encode_delete(self, columns: str, moment: SnapshotPoint) -> bytes:
        """The delete event of a row that is missing in the snapshot, from its key columns."""
        return f'{self._head}"before":{columns},"after":null,{self._encode_tail("d", moment)}}}}}'.encode()

    def _encode_tail(self, op: str, moment: SnapshotPoint) -> str:
        source = {
            "version": "1",
            "connector": self._log.name,
            "name": self._name,
            "ts_ms": moment.micros // 1_000,
            "snapshot": "true" if op == "r" else "false",
            "db": self._table.database,
            "sequence": None,
            "ts_us": moment.micros,
            **dict.fromkeys(name for name, _, _ in self._log.fields),
            **self._log.block(self._table, moment),
        }
        transaction = self._log.transaction(moment) if op == "d" else None
        return (
            f'"source":{_to_text(source)},"transaction":{_to_text(transaction)},"op":"{op}","ts_ms":{moment.micros // 1_000}'
        )


def _to_field(column: SourceColumn) -> dict[str, Any]:
    return {**column.schema, "optional": not column.required, "field": column.name}


def _strip_fields(fields: Sequence[tuple[str, str, bool]]) -> list[dict[str, Any]]:
    return [{"type": kind, "optional": optional, "field": name} for name, kind, optional in fields]


def _to_struct(fields: Sequence[Any], name: str, *, field: str = "", optional: bool = True) -> dict[str, Any]:
    made = {"type": "struct", "fields": list(fields), "optional": optional, "name": name}
    return {**made, "field": field} if field else made


def _to_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
