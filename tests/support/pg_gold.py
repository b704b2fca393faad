"""A pipeline with silver tables in PostgreSQL, read from files of rows, and projections over them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from replicator.application.operations.refresh import RefreshResult
from replicator.settings import Loaded, load_settings
from replicator.wiring import projections
from replicator.wiring.container import Container, run_until_caught_up

CONFIG = """\
pipeline: shop
state: ./state
sources:
  feed:
    format: rows
    transport: files
    path: ./feed
    files: csv
    csv: {{header: true}}
    operation_column: op
sinks:
  pg: {{kind: postgres, dsn: "{dsn}", schema: silver}}
  gold: {{kind: postgres, dsn: "{dsn}", schema: gold}}
  log: {{kind: event_log, dsn: "{dsn}"}}
  lake: {{kind: delta, path: ./lake}}
dead_letters: {{path: ./dead_letters}}
event_store: {{dsn: "{dsn}"}}
lineage: {{path: ./lineage.jsonl}}
tables:
  - match: orders
    source: feed
    keys: [id]
    schema: {{id: int64, city: string, amount: "decimal(10,2)", seq: int64}}
    sequence_by: seq
    except_column_list: [seq]
    to: [{{sink: pg}}, {{sink: lake}}]
  - match: cities
    source: feed
    keys: [city]
    schema: {{city: string, state: string, seq: int64}}
    sequence_by: seq
    except_column_list: [seq]
    to: [{{sink: pg}}, {{sink: lake}}]
projections: {projections}
"""
SUMS = "SELECT city, COUNT(*) AS orders, SUM(amount) AS total FROM orders GROUP BY city"
JOINED = (
    "SELECT o.city, c.state, COUNT(*) AS orders, SUM(o.amount) AS total FROM orders o LEFT JOIN cities c ON c.city = o.city "
    "GROUP BY o.city, c.state"
)
SESSIONS = "FROM pg_stat_activity WHERE application_name LIKE 'replicator projections%%'"


class Shop:
    """The project's folder, and actions in it."""

    def __init__(self, root: Path, dsn: str) -> None:
        said = conninfo_to_dict(dsn)
        self.root, self.dsn = root, dsn
        self.config = root / "config" / "replicator.yaml"
        self.url = f"postgresql://{said['user']}@{said['host']}:{said['port']}/{said['dbname']}"
        self._files = 0

    def configure_projections(self, sql: str, more: str, **other: str) -> None:
        """Configures the projection `sums`, and others, as name="SQL | keys of the config"."""
        said = {"sums": f"{sql} | {more}", **other}
        entries = []
        for name, one in said.items():
            text, _, keys = one.rpartition(" | ")
            (self.root / f"{name}.sql").write_text(text)
            entries.append(f"{name}: {{sql: ./{name}.sql, {keys}}}")
        text = CONFIG.format(dsn=self.url, projections="{" + ", ".join(entries) + "}")
        self.config.parent.mkdir(exist_ok=True)
        self.config.write_text(text)

    def load_config(self, *overrides: str) -> Loaded:
        return load_settings(self.config, None, overrides, environ={})

    def feed(self, table: str, *lines: str) -> None:
        """Writes a file of changes: `op,column,...`. The last column is the sequence."""
        columns = {"orders": "op,id,city,amount,seq", "cities": "op,city,state,seq"}[table]
        self._files += 1
        file = self.root / "feed" / table / f"{self._files:06}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join([columns, *lines, ""]))
        os.utime(file, (1_700_000_000 + self._files,) * 2)

    def run(self) -> None:
        run_until_caught_up(Container(loaded=self.load_config()))

    def refresh(self, *overrides: str, name: str = "sums") -> RefreshResult:
        loaded = self.load_config(*overrides)
        with projections.open_refresher(loaded) as refreshing:
            (one,) = projections.select_projections(loaded, [name])
            return refreshing.refresh(one)

    def query_database(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def count_sessions(self) -> int:
        """The number of open connections of refreshes."""
        ((count,),) = self.query_database(f"SELECT count(*) {SESSIONS}")
        return int(count)

    def await_no_session(self) -> bool:
        """Waits until the server has ended all sessions, a moment after the clients."""
        return any(self.count_sessions() == 0 or time.sleep(0.05) for _ in range(100))

    def end_sessions(self) -> None:
        self.query_database(f"SELECT pg_terminate_backend(pid) {SESSIONS}")


def list_row_values(rows: Mapping[str, Any] | Any) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in rows}
