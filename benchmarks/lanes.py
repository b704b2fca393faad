"""The measured lanes: the local engine into one target, or into all at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable

from adapters.stack import EmbeddedStack

from .configs import LAKE, LOG, POSTGRES, write_config
from .servers import PROJECT, cpu_seconds, postmaster, workspace
from .topic import TOPIC, Filled

LANES: dict[str, tuple[str, ...]] = {"delta": (LAKE,), "pg": (POSTGRES,), "log": (LOG,), "all": (LAKE, POSTGRES, LOG)}


def measure(stack: EmbeddedStack, name: str, filled: Filled) -> dict[str, Any]:
    """Run one lane over the whole topic into empty targets; its figures. Raises when a target does not hold what it must."""
    sinks, folder = LANES[name], workspace(name)
    dsn = stack.create_database("target", f"bench_{name}")
    config = write_config(folder, sinks, stack.bootstrap_servers, dsn)
    server, wal = postmaster(stack), wal_position(dsn)
    spent = cpu_seconds(server)
    figures = python("benchmarks.child", str(config), out=folder / "figures.json")
    figures["server_cpu"] = cpu_seconds(server) - spent
    figures["bytes"] = sum(_count_written(folder, sink) for sink in sinks)
    if POSTGRES in sinks:
        figures["bytes"] += relation_bytes(dsn, "rows") + wal_position(dsn) - wal
    if figures["events"] != filled.events:
        raise RuntimeError(f"{name}: the lanes stand at {figures['events']} of {filled.events} events.")
    _check(folder, sinks, dsn, filled)
    return figures


def python(module: str, *arguments: str, out: Path) -> dict[str, Any]:
    """What a module, run in a process of its own, wrote to `out` as JSON."""
    log = out.with_suffix(".log")
    with log.open("w") as text:
        command = [sys.executable, "-m", module, *arguments, str(out)]
        done = subprocess.run(command, cwd=PROJECT, stdout=text, stderr=text, check=False)
    if done.returncode:
        raise RuntimeError(f"{module} ended with code {done.returncode}; the end of its output:\n{log.read_text()[-3000:]}")
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def raw(stack: EmbeddedStack, filled: Filled, whose: str) -> dict[str, Any]:
    """The raw rate with `own` settings or those of the `library`, in a process of its own."""
    out = workspace("raw") / "figures.json"
    return python("benchmarks.raw", stack.bootstrap_servers, TOPIC, str(filled.events), whose, out=out)


def wal_position(dsn: str) -> int:
    """How many bytes of WAL the server has written so far."""
    return _number(dsn, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8")


def relation_bytes(dsn: str, table: str) -> int:
    """The size of a table with its indexes."""
    return _number(dsn, f"SELECT pg_total_relation_size('{table}')")


def table_totals(dsn: str, table: str) -> tuple[int, int]:
    """Rows of a PostgreSQL target, and the sum of their versions."""
    return _number(dsn, f"SELECT count(*) FROM {table}"), _number(dsn, f"SELECT sum(version)::int8 FROM {table}")


def _number(dsn: str, query: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(query.encode()).fetchone()
    return int(row[0]) if row and row[0] is not None else 0


def _count_written(folder: Path, sink: str) -> int:
    return sum(p.stat().st_size for p in (folder / sink).rglob("*") if p.is_file())


def _check(folder: Path, sinks: Sequence[str], dsn: str, filled: Filled) -> None:
    """A rate counts only if the rows are right."""
    for sink in sinks:
        wanted = (filled.rows, filled.checksum)
        if sink == POSTGRES:
            found = table_totals(dsn, "rows")
        elif sink == LAKE:
            table = DeltaTable(str(folder / "lake" / "rows")).to_pyarrow_table(columns=["version"])
            found = table.num_rows, int(sum(table["version"].to_pylist()))
        else:
            found, wanted = (_log_rows(folder), 0), (filled.events, 0)
        if found != wanted:
            raise RuntimeError(f"{sink} holds {found} rows and sum of versions, not {wanted}.")


def _log_rows(folder: Path) -> int:
    actions = DeltaTable(str(folder / "log")).get_add_actions(flatten=True)
    return int(sum(actions.column("num_records").to_pylist()))
