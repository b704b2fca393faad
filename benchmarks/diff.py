"""How fast a table is compared with its targets, beside a copy of the table and SQL's EXCEPT.

The source's table is loaded into each target by a backfill. There is no connector: a thread confirms the log for it. The
copy goes through COPY from the source's server into the target's, where EXCEPT compares both directions.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table
from ruamel.yaml import YAML

from adapters.stack import EmbeddedStack

from .configs import LAKE, POSTGRES, write_config
from .replay import measure_command
from .servers import servers, workspace

TO_REACH = 200_000
"""Rows per second. pgCompare publishes 16,000."""
SINKS = (LAKE, POSTGRES)
TABLE = "public.rows"
SLOT = "bench_diff"
CREATE = """
CREATE TABLE rows
    (id bigint PRIMARY KEY, number int NOT NULL, price numeric(12, 2), note text, at timestamptz, good boolean);
INSERT INTO rows SELECT i, i %% 1000, i / 7.0, 'note of row ' || i,
    timestamptz '2026-01-01 00:00:00Z' + i * interval '1 second', i %% 3 = 0 FROM generate_series(1, %s) AS i"""
SET_UP = (
    f"CREATE PUBLICATION {SLOT} FOR TABLE rows",
    f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')",
)
COLUMNS = "id, number, price, note, at, good"
EXCEPT = f"""
SELECT count(*) FROM ((SELECT {COLUMNS} FROM copied EXCEPT SELECT {COLUMNS} FROM rows)
    UNION ALL (SELECT {COLUMNS} FROM rows EXCEPT SELECT {COLUMNS} FROM copied)) AS d"""
ENTRY = "from replicator.cli import entry; entry()"
CONTROL = "diff, again: A/A control"


def measure(rows: int, sinks: Sequence[str], rounds: int) -> dict[str, Any]:
    """Per sink the runs of the command, and for PostgreSQL those of the copy: seconds, and the command's peak of memory."""
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with servers(source=True, connect=False) as stack:
        source, target = stack.dsn("source", superuser=True), stack.dsn("target", superuser=True)
        _create(source, rows)
        with _confirmed(source):
            for sink in sinks:
                config = _configure(stack, source, target, sink)
                loaded = _run(config, "backfill", TABLE)
                if loaded["rows"] != rows:
                    raise RuntimeError(f"{loaded['rows']} of {rows} rows were loaded")
                with psycopg.connect(source, autocommit=True) as connection:
                    connection.execute("ANALYZE rows")
                found = runs[sink] = {"diff": [], CONTROL: []}
                for _ in range(rounds):
                    for name in ("diff", CONTROL):
                        found[name].append(_diff(config, sink, rows))
                    if sink == POSTGRES:
                        found.setdefault("copy and EXCEPT", []).append(_except(source, target))
    return {"rows": rows, "runs": runs}


def _create(source: str, rows: int) -> None:
    with psycopg.connect(source, autocommit=True) as connection:
        with suppress(psycopg.Error):
            connection.execute(f"SELECT pg_drop_replication_slot('{SLOT}')".encode())
        connection.execute(f"DROP PUBLICATION IF EXISTS {SLOT}; DROP TABLE IF EXISTS rows".encode())
        for statement in CREATE.strip().split(";\n"):
            connection.execute(statement.encode(), [rows] if "%s" in statement else None)
        for statement in SET_UP:
            connection.execute(statement.encode())


def _configure(stack: EmbeddedStack, source: str, target: str, sink: str) -> Path:
    folder = workspace(f"diff-{sink}")
    config = write_config(folder, [sink], stack.bootstrap_servers, target, topic=SLOT, table=TABLE)
    yaml = YAML()
    document = yaml.load(config)
    document["sources"]["bench"]["database"] = {"dsn": source, "publication": SLOT, "slot": SLOT}
    with config.open("w") as out:
        yaml.dump(document, out)
    return config


@contextmanager
def _confirmed(source: str) -> Iterator[None]:
    """Confirms the log all the time, as a connector does that has nothing to send."""
    end = threading.Event()

    def confirm() -> None:
        with psycopg.connect(source, autocommit=True) as connection:
            while not end.wait(0.2):
                connection.execute(f"SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_lsn())".encode())

    running = threading.Thread(target=confirm, daemon=True)
    running.start()
    try:
        yield
    finally:
        end.set()
        running.join()
        with psycopg.connect(source, autocommit=True) as connection:
            connection.execute(f"SELECT pg_drop_replication_slot('{SLOT}')".encode())


def _diff(config: Path, sink: str, rows: int) -> dict[str, Any]:
    out = config.parent / "diff.out"
    ran = measure_command([sys.executable, "-c", ENTRY, "diff", TABLE, "--sink", sink, "-c", str(config), "--json"], out)
    [found] = json.loads(out.read_text())["result"]
    if not found["equal"] or found["rows"] != rows:
        raise RuntimeError(f"{sink}: {found}")
    return {**ran, "compared": found["seconds"]}


def _run(config: Path, *command: str) -> Any:
    out = config.parent / "command.out"
    measure_command([sys.executable, "-c", ENTRY, *command, "-c", str(config), "--json"], out)
    return json.loads(out.read_text())["result"]


def _except(source: str, target: str) -> dict[str, Any]:
    began = time.monotonic()
    with psycopg.connect(source) as one, psycopg.connect(target, autocommit=True) as other:
        other.execute(
            "DROP TABLE IF EXISTS copied; CREATE UNLOGGED TABLE copied "
            "(id bigint, number int, price numeric(12, 2), note text, at timestamptz, good boolean)"
        )
        with (
            one.cursor().copy(f"COPY rows ({COLUMNS}) TO STDOUT (FORMAT binary)".encode()) as reading,
            other.cursor().copy("COPY copied FROM STDIN (FORMAT binary)") as writing,
        ):
            for data in reading:
                writing.write(data)
        [(count,)] = other.execute(EXCEPT.encode()).fetchall()
    if count:
        raise RuntimeError(f"EXCEPT finds {count} rows")
    return {"seconds": time.monotonic() - began}


def show(figures: Mapping[str, Any]) -> None:
    """Print what `measure` found: the least of the rounds."""
    rows = figures["rows"]
    table = Table(title=f"{rows:,} rows of 6 columns")
    for name in ("target", "what", "s", "rows/s", "MB", "of diff"):
        table.add_column(name, justify="left" if name in ("target", "what") else "right")
    for sink, runs in figures["runs"].items():
        ours = min(run["seconds"] for run in runs["diff"])
        for name, each in runs.items():
            seconds = min(run["seconds"] for run in each)
            peak = max(run.get("peak", 0) for run in each)
            memory = f"{peak / 1e6:.0f}" if peak else ""
            table.add_row(sink, name, f"{seconds:.1f}", f"{rows / seconds:,.0f}", memory, f"{seconds / ours:.2f}")
    Console(width=120).print(table)
    print(f"to reach: {TO_REACH:,} rows/s, and less than 1,000 MB")
