"""Of which sources tables may have private columns, for all that is stored of them."""

from __future__ import annotations

from typing import Any

import pytest

from replicator.domain.columns import Mask
from replicator.wiring import adapters

TABLE = """\
  - match: users
    source: mine
    keys: [id]
    {schema}
    columns: {columns}
    to: [{{sink: lake}}]
"""
SCHEMA = "schema: {id: int64, email: string, op: string}"
HMAC = '{email: {mask: hmac, key: "0123456789abcdef"}}'
KAFKA = 'transport: kafka, bootstrap_servers: "b:1", topics: ["a"], group_id: g'


def write(folder: Any, source: str, schema: str = SCHEMA, columns: str = HMAC) -> None:
    text = folder.file.read_text().replace("sources:\n", f"sources:\n  mine: {{{source}}}\n", 1)
    folder.write(text.replace("tables:\n", "tables:\n" + TABLE.format(schema=schema, columns=columns), 1))


@pytest.mark.parametrize(
    ("source", "schema"),
    [
        *((f"format: {kind}, {KAFKA}", SCHEMA) for kind in ("canal_json", "maxwell_json", "ogg_json", "dts_avro")),
        (f"format: debezium_json, flattened: true, {KAFKA}", f"{SCHEMA}\n    tombstones: ignore"),
        (f"format: rows, operation_column: op, {KAFKA}", SCHEMA),
        ("format: rows, transport: files, path: ./in, files: csv, csv: {header: true}", SCHEMA),
        ("format: dms_csv, transport: files, path: ./in", SCHEMA),
        ("format: dms_parquet, transport: files, path: ./in", ""),
        ("format: rows, transport: delta, path: ./in/users", ""),
    ],
)
def test_records_of_these_can_be_stored_without_values(folder: Any, source: str, schema: str) -> None:
    write(folder, source, schema)
    assert folder.load().settings.tables[0].columns["email"].is_private


def test_others_are_refused(folder: Any) -> None:
    write(folder, f"format: debezium_outbox, {KAFKA}", "")
    found = [finding for finding in folder.findings() if finding.code == "inapplicable"]
    assert [finding.message for finding in found if "cannot be written without them" in finding.message]


QUERY = 'format: rows, transport: query, dsn: "postgresql://h/d", table: users, cursor_column: at'


@pytest.mark.parametrize("source", ["format: rows, transport: snapshots, path: ./in/users", QUERY])
def test_sources_that_write_rows_down_are_told_the_masks(folder: Any, source: str) -> None:
    write(folder, source, "deletes: ignore")
    loaded = folder.load()
    assert adapters.kept(loaded, "mine")["private"] == {"email": Mask("hmac", b"0123456789abcdef")}
    assert adapters.decoder(loaded, "mine").__reduce__()[1][0]["private"]["users"].keys() == {"email"}


def test_what_tells_what_is_new_cannot_be_masked(folder: Any) -> None:
    write(folder, QUERY, "deletes: ignore", columns=HMAC.replace("email", "at"))
    assert "masks the 'cursor_column' of source 'mine'" in folder.only().message


def test_what_tells_operations_or_order_cannot_be_masked(folder: Any) -> None:
    source = f"format: rows, operation_column: op, sequence_columns: [id], {KAFKA}"
    write(folder, source, columns=HMAC.replace("email", "op"))
    assert "masks what tells operations" in folder.only().message
