"""How fast an event log is replayed into a table, beside DuckDB alone that makes the same table of the log's Parquet files.

Each runs in a process of its own, in turns, and is counted whole, its start too. DuckDB reads the columns of rows out of
the JSON text, takes the newest of each key or orders the versions, and writes one Parquet file; it looks for no rejects,
keeps no position, and could not go on.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from rich.console import Console
from rich.table import Table

from .configs import LAKE, LOG, write_config
from .lanes import python
from .servers import PROJECT, workspace

TO_REACH = 0.25
POLICIES = ("scd1", "scd2")
COLUMNS = ("value", "after")
"""Of the log: the records as they came, and the row that it tells of each."""
CONTROL = "replay, again: A/A control"
REPLAY = "from replicator.cli import entry; entry()"


def measure(events: int, policies: Sequence[str], columns: Sequence[str], rounds: int) -> dict[str, Any]:
    """Per policy the runs of the program, and of DuckDB out of each of `columns`: seconds, processor seconds, peak bytes."""
    # As an installation does, so that no run translates modules.
    for package in ("replicator", "adapters", "benchmarks"):
        compileall.compile_dir(PROJECT / package, quiet=1)
    folder = workspace("replay")
    config = write_config(folder, [LAKE, LOG], "127.0.0.1:1", "")
    made = python("benchmarks.replay_child", "log", str(folder / "log"), str(events), out=folder / "log.json")
    stored = sum(file.stat().st_size for file in (folder / "log").rglob("*.parquet"))
    print(f"{events:,} events, {made['bytes'] / 1e9:.2f} GB, {stored / 1e9:.2f} GB in the log", flush=True)
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {p: {n: [] for n in ("replay", *columns, CONTROL)} for p in policies}
    for _ in range(rounds):
        for policy in policies:
            runs[policy]["replay"].append(_replay(config, policy, events, made))
            for column in columns:
                runs[policy][column].append(_duckdb(folder, column, policy, made))
            runs[policy][CONTROL].append(_replay(config, policy, events, made))
    shutil.rmtree(folder)
    return {"events": events, "bytes": made["bytes"], "log_bytes": stored, "runs": runs}


def _replay(config: Path, policy: str, events: int, made: Mapping[str, Any]) -> dict[str, Any]:
    into, folder = f"rows_{policy}", config.parent
    for left in (folder / "lake", folder / "state"):
        shutil.rmtree(left, ignore_errors=True)
    options = ["--lane", f"{LAKE}.rows", "--into", into, "--policy", policy, "-c", str(config), "--json"]
    ran = measure_command([sys.executable, "-c", REPLAY, "replay", "public.rows", *options], folder / "replay.out")
    said = json.loads((folder / "replay.out").read_text())["result"]
    if said["records"] != events:
        raise RuntimeError(f"of {events} records {said['records']} were replayed")
    rows = DeltaTable(folder / "lake" / into).to_pyarrow_dataset()
    current = rows.to_table(["version"] + (["_cdc_end_seq_1"] if policy == "scd2" else []))
    if policy == "scd2":
        current = current.filter(current["_cdc_end_seq_1"].is_null())
    _refuse_other(f"replay, {policy}", {"rows": current.num_rows, "checksum": sum(current["version"].to_pylist())}, made)
    return ran | {"commits": DeltaTable(folder / "lake" / into).version()}


def _duckdb(folder: Path, column: str, policy: str, made: Mapping[str, Any]) -> dict[str, Any]:
    out = folder / "duckdb.json"
    command = [sys.executable, "-m", "benchmarks.replay_child", "duckdb", str(folder / "log"), column, policy, str(out)]
    ran = measure_command(command, folder / "duckdb.out")
    _refuse_other(f"DuckDB, {policy} of {column}", json.loads(out.read_text()), made)
    return ran


def _refuse_other(what: str, found: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    if (found["rows"], found["checksum"]) != (made["rows"], made["checksum"]):
        raise RuntimeError(f"{what}: {found} instead of {made}")


def measure_command(command: Sequence[str], out: Path) -> dict[str, Any]:
    """Run a command to its end, its output in `out`: seconds, processor seconds of it, the most memory that it had."""
    log = out.with_suffix(".log")
    with out.open("w") as text, log.open("w") as errors:
        began = time.monotonic()
        running = subprocess.Popen(command, cwd=PROJECT, stdout=text, stderr=errors)
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode:
        said = out.read_text()[-2000:] + log.read_text()[-3000:]
        raise RuntimeError(f"{command[2:5]} ended with code {running.returncode}; the end of its output:\n{said}")
    return {"seconds": time.monotonic() - began, "cpu": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss * 1024}


def show(figures: Mapping[str, Any]) -> None:
    """Print what `measure` found: the least of the rounds, and of DuckDB what the program reaches."""
    events = figures["events"]
    table = Table(
        title=f"{events:,} records, {figures['bytes'] / 1e9:.1f} GB, {figures['log_bytes'] / 1e9:.2f} GB in the log"
    )
    for name in ("policy", "what", "s", "records/s", "CPU s", "records per CPU s", "MB", "of it, by s", "of it, by CPU s"):
        table.add_column(name, justify="left" if name in ("policy", "what") else "right")
    for policy, runs in figures["runs"].items():
        least = {
            name: {key: min(run[key] for run in each) for key in ("seconds", "cpu", "peak")} for name, each in runs.items()
        }
        ours = least["replay"]
        for name, one in least.items():
            ratio = ["", ""] if one is ours else [f"{one[key] / ours[key]:.2f}" for key in ("seconds", "cpu")]
            rates = [
                f"{one['seconds']:.1f}",
                f"{events / one['seconds']:,.0f}",
                f"{one['cpu']:.1f}",
                f"{events / one['cpu']:,.0f}",
            ]
            named = f"DuckDB, of `{name}`" if name in COLUMNS else f"{name}, commits: {runs[name][0]['commits']}"
            table.add_row(policy, named, *rates, f"{one['peak'] / 1e6:,.0f}", *ratio)
    Console(width=150).print(table)
    print(f"to reach: {TO_REACH} of DuckDB's rate")
