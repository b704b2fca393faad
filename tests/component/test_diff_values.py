"""Values of every type are compared in targets of every kind: equal ones are equal, and each changed one is found."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from ruamel.yaml import YAML
from support.schema_changes import url

from adapters.sources.backfill.postgres import PostgresComparison
from replicator.application.operations.diff import DiffOperation
from replicator.application.operations.diff_records import write_records
from replicator.domain.differences import LaneDiff
from replicator.domain.policy.plan import LaneState
from replicator.ports.source import Source
from replicator.settings import load_settings
from replicator.testing.fakes import FakeSource
from replicator.wiring.components import ConfiguredComponents

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

COLUMNS: dict[str, tuple[str, tuple[str | None, ...], str]] = {
    # name: type in the source, values, another value
    "i2": ("smallint", ("-32768", "0", None), "1"),
    "i8": ("bigint", ("9223372036854775807", "-1", None), "2"),
    "good": ("boolean", ("t", "f", None), "t"),
    "f4": ("real", ("0.1", "1e30", "NaN"), "0.2"),
    "f8": ("double precision", ("0.1", "-0", "1e300"), "0.10000000000000002"),
    "n": ("numeric(12,2)", ("1.50", "-0.01", None), "1.51"),
    "wide": ("numeric", ("1.50", "12345678901234567890.5", None), "1.5000001"),
    "note": ("text", ("", "a|b", None), "A|b"),
    "short": ("varchar(9)", ("blank ", "Ü", "e"), "blank"),
    "padded": ("char(4)", ("ab", "", None), "b"),
    "raw": ("bytea", ("\\x00ff", "\\x", None), "\\x00fe"),
    "day": ("date", ("2026-01-01", "0001-01-01", None), "2026-01-02"),
    "at": ("timestamp", ("2026-01-01 10:00:00.5", "1969-12-31 23:59:59.999999", None), "2026-01-01 10:00:00.500001"),
    "zoned": ("timestamptz", ("2026-01-01 10:00:00+02", "2026-01-01 08:00:00.000001+00", None), "2026-01-01 10:00:00+00"),
    "clock": ("time", ("10:00:00", "23:59:59.999999", None), "10:00:00.000001"),
    "uid": ("uuid", ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None, None), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12"),
    "doc": ("jsonb", ('{"b": 1, "a": [1.50]}', "null", None), '{"a": [1.5], "b": 2}'),
    "plain": ("json", ('{"b":1}', "[ ]", None), '{"b": 2}'),
    "ids": ("int[]", ("{1,2}", "{}", None), "{1,3}"),
    "span": ("interval", ("1 day", None, None), "2 days"),
}
IGNORED = "span"
LANES = ("lake.kept", "lake.changed", "lake.versions", "pg.kept", "pg.versions")


class World:
    """A table with a slot, and targets that an archive of its rows has filled."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn, self.folder = dsn, folder
        columns = ", ".join(f'"{name}" {kind}' for name, (kind, _, _) in COLUMNS.items())
        self.execute(f'CREATE TABLE kept (id int, "part ""%" text, {columns}, PRIMARY KEY (id, "part ""%"))')
        self.execute("CREATE PUBLICATION shop FOR TABLE kept")
        self.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        for row in range(len(COLUMNS) + 3):
            values = [values[row % 3] for _, values, _ in COLUMNS.values()]
            self.execute(f"INSERT INTO kept VALUES (%s, %s, {', '.join(['%s'] * len(values))})", row, f"%{row}", *values)
        self.parts = self.configure({"transport": "kafka", "bootstrap_servers": "127.0.0.1:1", "topics": ["x"]})

    def execute(self, statement: str, *parameters: Any) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement.encode(), parameters or None)

    def configure(self, source: dict[str, Any]) -> ConfiguredComponents:
        path = self.folder / "config" / f"{source['transport']}.yaml"
        path.parent.mkdir(exist_ok=True)
        changed = {"note": {"rename": "remark"}, "short": {"mask": "hmac", "key": "0123456789abcdef"}, "i2": {"cast": "string"}}
        to = [
            {"sink": "lake"},
            {"sink": "lake", "into": "changed", "columns": changed, "where": "id < 5"},
            {"sink": "lake", "into": "versions", "policy": "scd2"},
            {"sink": "pg", "deletes": "soft"},
            {"sink": "pg", "into": "versions", "policy": "scd2"},
        ]
        database = {"dsn": url(self.dsn), "publication": "shop", "slot": "s"}
        source = {"format": "debezium_json", **source, **({"database": database} if source["transport"] == "kafka" else {})}
        config = {
            "pipeline": "p",
            "state": str(self.folder / "state"),
            "sources": {"s": source},
            "sinks": {
                "lake": {"kind": "delta", "path": str(self.folder / "lake")},
                "pg": {"kind": "postgres", "dsn": url(self.dsn), "schema": "mirror"},
            },
            "tables": [{"match": "public.kept", "source": "s", "to": to}],
        }
        with path.open("w") as out:
            YAML().dump(config, out)
        return ConfiguredComponents(load_settings(path))

    def comparison(self) -> PostgresComparison:
        options = {"dsn": self.dsn, "publication": "shop", "slot": "s", "table": "public.kept"}
        return PostgresComparison({**options, "state": str(self.folder / "kept")})

    def fill(self) -> None:
        """Load the targets with what a snapshot reads."""
        (self.folder / "records").mkdir()
        with self.comparison().open_snapshot(lambda _: None) as snapshot:
            write_records(self.folder / "records" / "0.parquet", snapshot.read(None, None))
        self.configure({"transport": "archive", "path": str(self.folder / "records")}).catch_up()

    def compare(self) -> dict[str, LaneDiff]:
        def confirm(_: str) -> None:
            self.execute("SELECT pg_replication_slot_advance('s', pg_current_wal_lsn())")

        source: Source[pa.Table] = FakeSource([])
        lanes = self.parts.resolve_lanes("public.kept")
        operation = DiffOperation(self.parts, lanes, self.comparison(), source, confirm, patience=20, show=100)
        return {diff.lane: diff for diff in operation.run()}
