"""The shipped pipeline on servers of its own: its source, and how its five targets compare with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from psycopg import sql
from psycopg.rows import dict_row

from replicator.domain.plain_values import format_count
from replicator.shipped import find_shipped

from .embedded import EmbeddedStack
from .layout import StackPorts

TABLES = ("customers", "products", "orders", "order_items")
SOURCE = "source_db"
MIRRORS = ("deltalake", "cdc_processed", "target_db")
LOGS = ("deltalake/cdc_events", "cdc_raw.cdc_events")
CHANGES = """
BEGIN;
INSERT INTO customers (first_name, last_name, email, city) VALUES ('Hedy', 'Lamarr', 'hedy@example.com', 'Vienna');
INSERT INTO orders (customer_id, status, total_amount)
    SELECT id, 'new', 101.00 FROM customers WHERE email = 'hedy@example.com';
INSERT INTO order_items (order_id, product_id, quantity, unit_price)
    SELECT max(id), 3, 1, 12.00 FROM orders UNION ALL SELECT max(id), 4, 1, 89.00 FROM orders;
COMMIT;
UPDATE orders SET status = 'paid' WHERE id = (SELECT max(id) FROM orders);
UPDATE products SET stock_quantity = stock_quantity - 1 WHERE id IN (3, 4);
UPDATE customers SET city = 'Hollywood' WHERE email = 'hedy@example.com';
INSERT INTO customers (first_name, last_name, email) VALUES ('Gone', 'Soon', 'gone@example.com');
DELETE FROM customers WHERE email = 'gone@example.com';
""".strip()
NOT_IN_CLEAR = ("_at", "_on", "price", "amount", "attributes")
"""Ends of names of columns that records hold in an encoding of the connector."""

Rows = Mapping[Any, Mapping[str, Any]]
"""Rows by `id`."""


class Demo:
    """Servers on free ports, and the shipped config, all below `folder`, which must be empty. `tell` gets progress lines."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self._folder = folder
        shutil.copytree(find_shipped("config"), folder / "config", ignore=shutil.ignore_patterns("examples"))
        self._stack = EmbeddedStack(folder, ports=StackPorts.find_free(), tell=tell)
        self.changes = CHANGES

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables with the addresses of the servers, for the shipped config and for `replicator stack`."""
        ports = self._stack.home.ports
        return {**ports.environment(), "REPLICATOR_STACK_PORTS": ",".join(f"{n}={p}" for n, p in ports.mapping().items())}

    def up(self) -> None:
        """Start the servers. EnvironmentProblem if one cannot start."""
        self._stack.up()

    def register_connector(self) -> None:
        """Let Debezium follow the source. EnvironmentProblem if it does not run."""
        self._stack.register_connector()

    def down(self) -> None:
        """Stop the servers, and remove their data."""
        for service in ("debezium", "kafka"):
            self._stack.service(service).kill()  # Their orderly end takes seconds.
        self._stack.down(clean=True)

    def change(self) -> None:
        """Run `changes` in the source."""
        with psycopg.connect(self._stack.dsn("source"), autocommit=True) as source:
            for statement in CHANGES.split(";\n"):
                source.execute(statement.encode())

    def read(self, store: str, table: str) -> Rows:
        """The rows of a table in the source, in a mirror, or as an event log leaves them; empty before there is a table."""
        if store in LOGS:
            return self._replay(store, table)
        if store == "deltalake":
            return {row["id"]: _parse_json(row) for row in self._read_delta(table)}
        server, schema = {
            SOURCE: ("source", "public"),
            "target_db": ("target", "public"),
            "cdc_processed": ("datalake", "cdc_processed"),
        }[store]
        query = sql.SQL("SELECT * FROM {}").format(sql.Identifier(schema, table))
        with psycopg.connect(self._stack.dsn(server), row_factory=dict_row) as connection:
            try:
                return {row["id"]: _parse_json(row) for row in connection.execute(query)}
            except psycopg.errors.UndefinedTable:
                return {}

    def find_difference(self) -> str | None:
        """The first table that differs from the source, as a sentence; None if every target equals it."""
        for store, table in product((*MIRRORS, *LOGS), TABLES):
            if rows := self.count_differences(store, table):
                return f"table {table} in {store} differs from the source in {format_count(rows, 'row')}"
        return None

    def describe_tables(self) -> list[dict[str, Any]]:
        """For each table its `rows` in the source, and how many rows each target has, and how many of them `differ`."""
        targets = (*MIRRORS, *LOGS)
        return [
            {
                "table": table,
                "rows": len(self.read(SOURCE, table)),
                "targets": {
                    p: {"rows": len(self.read(p, table)), "differ": self.count_differences(p, table)} for p in targets
                },
            }
            for table in TABLES
        ]

    def list_newest(self) -> list[dict[str, Any]]:
        """The newest two customers in the source and each target."""
        reads = ((store, self.read(store, "customers")) for store in (SOURCE, *MIRRORS, *LOGS))
        return [
            {"target": store, **{name: rows[key][name] for name in ("id", "first_name", "last_name", "email", "city")}}
            for store, rows in reads
            for key in sorted(rows)[-2:]
        ]

    def count_differences(self, store: str, table: str) -> int:
        """Rows that are missing, too many, or differ in a column of the source. A log is compared in whole numbers, texts
        and truth values, as it holds other types in an encoding of the connector."""
        expected, rows = self.read(SOURCE, table), self.read(store, table)
        count = len(expected.keys() ^ rows.keys())
        for key in expected.keys() & rows.keys():
            row, other = expected[key], rows[key]
            names = [name for name in row if store not in LOGS or not name.endswith(NOT_IN_CLEAR)]
            count += any(name not in other or row[name] != other[name] for name in names)
        return count

    def _replay(self, store: str, table: str) -> Rows:
        """The last image of each key."""
        topic = f"cdc.public.{table}"
        if store == LOGS[0]:
            events = [e for e in self._read_delta("cdc_events") if e["topic"] == topic and e["op"]]
            pairs = [(e["before"], e["after"]) for e in sorted(events, key=lambda e: (e["partition"], e["offset"]))]
        else:
            query = f'SELECT before, after FROM {store} WHERE topic = %s AND op IS NOT NULL ORDER BY partition, "offset"'  # noqa: S608
            with psycopg.connect(self._stack.dsn("datalake")) as connection:
                pairs = connection.execute(query.encode(), (topic,)).fetchall()
        rows: dict[Any, Mapping[str, Any]] = {}
        for pair in pairs:
            before, after = (json.loads(image) if isinstance(image, str) else image for image in pair)
            key = (after or before)["id"]
            if after is None:
                rows.pop(key, None)
            else:
                rows[key] = after
        return rows

    def _read_delta(self, name: str) -> list[dict[str, Any]]:
        try:
            rows: list[dict[str, Any]] = DeltaTable(self._folder / "deltalake" / name).to_pyarrow_table().to_pylist()
        except TableNotFoundError:
            return []
        return rows


def _parse_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its JSON column parsed, which some targets hold as text."""
    return {n: json.loads(v) if n == "attributes" and isinstance(v, str) else v for n, v in row.items()}
