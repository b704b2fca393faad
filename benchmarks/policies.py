"""What a policy costs beside a MERGE written by hand: one batch of changes into a large table, on each sink.

The table is loaded once per case, and copied for every run, so that each starts from the same files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable, write_deltalake

from adapters.postgres.names import quote_name
from adapters.sinks.delta.sink import DeltaRsSink
from adapters.sinks.postgres.sink import PostgresSink
from replicator.cli import ALLOCATORS
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position
from replicator.domain.table import Column

from .applying import AT, WHEN, Case
from .policies_child import lane
from .servers import PROJECT, servers, workspace

SINKS = ("delta-rs", "postgres", "spark")


def measure(cases: Sequence[Case], sinks: Sequence[str], runs: int) -> dict[str, Any]:
    """Per case and sink the runs of the program and of a MERGE by hand, in turns: seconds, processor seconds of what runs
    here, peak bytes of the process, bytes written to the table per byte of the changes."""
    out = []
    for case in cases:
        if set(sinks) & {"delta-rs", "spark"}:
            lake = _lake(case)
            out += [_of_lake(case, sink, lake, runs) for sink in sinks if sink != "postgres"]
        if "postgres" in sinks:
            out.append(_of_postgres(case, runs))
    return {"runs": out}


def show(figures: dict[str, Any]) -> None:
    """Print what `measure` found: the least of the runs."""
    print(
        "policy         rows  columns     keys      sink       s  by hand  ratio   A/A   CPU s  by hand  ratio     MB  "
        "written  versions by hand   alone"
    )
    for run in figures["runs"]:
        case, ours, plain = run["case"], run["ours"], run["plain"]
        seconds, again, by_hand = (min(r["seconds"] for r in some) for some in (ours, run["again"], plain))
        cpu, cpu_by_hand = (min(r["cpu"] for r in some) for some in (ours, plain))
        most = max(r["peak"] for r in ours) / 1e6
        written = min(r["written"] for r in ours) / run["bytes"]
        processors = _of_processors(run["sink"], cpu, cpu_by_hand)
        print(
            f"{case['policy']:7}{case['rows']:12,}{case['columns']:9}{case['keys']:>9}{run['sink']:>10}{seconds:8.2f}"
            f"{by_hand:9.2f}{seconds / by_hand:7.2f}{again / seconds:6.2f}{processors}{most:7,.0f}{written:9.1f}"
            + "".join(f"{min(r['seconds'] for r in some):{w}.2f}" for some, w in _by_hand(run))
        )


def _of_processors(sink: str, ours: float, by_hand: float) -> str:
    """Nothing where a server does the work."""
    return " " * 24 if sink == "postgres" else f"{ours:8.1f}{by_hand:9.1f}{ours / by_hand:7.2f}"


def _by_hand(run: dict[str, Any]) -> list[tuple[list[dict[str, Any]], int]]:
    """Runs that write a history by hand, and how wide their column is."""
    return [(run[name], width) for name, width in (("versions", 18), ("alone", 7)) if run[name]]


def _load_lane(case: Case) -> LaneState:
    """The state of a lane that has loaded the table."""
    return LaneState(Position({AT: 0}), max_sequence=(1,), rule=case.plan.rule)


def _lake(case: Case) -> Path:
    folder = workspace("policies") / "lake"
    sink = DeltaRsSink({"path": str(folder)})
    sink.prepare(lane(case), case.plan)
    for piece in case.base():
        write_deltalake(str(folder / "items"), piece, mode="append")
    sink.skip(lane(case), _load_lane(case))
    sink.close()
    return folder


def _of_lake(case: Case, sink: str, lake: Path, runs: int) -> dict[str, Any]:
    def run(target: str) -> dict[str, Any]:
        mine = lake.with_name("run")
        shutil.rmtree(mine, ignore_errors=True)
        shutil.copytree(lake, mine)
        before = set(DeltaTable(str(mine / "items")).file_uris())
        done = _child(case, target, str(mine))
        added = set(DeltaTable(str(mine / "items")).file_uris()) - before
        return done | {"written": sum(Path(uri.removeprefix("file://")).stat().st_size for uri in added)}

    return _in_turns(case, sink, run, runs)


def _of_postgres(case: Case, runs: int) -> dict[str, Any]:
    """Every run in a copy of one database."""
    with servers(connect=False) as stack:
        loaded, mine = (stack.create_database("target", name) for name in ("loaded", "run"))
        _load(loaded, case)
        owner = psycopg.conninfo.conninfo_to_dict(mine)["user"]

        def run(target: str) -> dict[str, Any]:
            with psycopg.connect(stack.dsn("target", "postgres", superuser=True), autocommit=True) as connection:
                connection.execute("DROP DATABASE run WITH (FORCE)")
                connection.execute(f"CREATE DATABASE run TEMPLATE loaded OWNER {owner} STRATEGY file_copy".encode())
            before = _wal(mine)
            done = _child(case, target, mine)
            return done | {"written": _wal(mine) - before}

        return _in_turns(case, "postgres", run, runs)


def _load(dsn: str, case: Case) -> None:
    sink = PostgresSink({"dsn": dsn, "schema": "public"})
    sink.prepare(lane(case), case.plan)
    known = {"id": "g", "_cdc_op": "'r'", "_event_id": "'snapshot'", "_cdc_seq_1": "1", "_cdc_last_seq_1": "1"}
    known |= dict.fromkeys(("_cdc_ts", "__START_AT"), f"'{WHEN.isoformat()}'")
    known |= {c.name: _value(i, c) for i, c in enumerate(case.table.values)}
    mine = [c.name for c in case.plan.target if c.name in known]
    columns, values = ", ".join(map(quote_name, mine)), ", ".join(known[n] for n in mine)
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = f"SELECT {values} FROM generate_series(0, {case.rows - 1}) AS g"
        connection.execute(f"INSERT INTO items ({columns}) {rows}".encode())
        connection.execute("VACUUM ANALYZE items")
    sink.skip(lane(case), _load_lane(case))
    sink.close()


def _value(number: int, column: Column) -> str:
    plain = f"(g * 31 + {number}) % 100003"
    kinds = {"string": f"({plain})::text", "double": f"({plain})::float8", "bool": f"(({plain}) & 1) = 1"}
    return kinds.get(str(column.type), plain)


def _wal(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        (bytes_written,) = connection.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone() or (0,)
    return int(bytes_written)


def _in_turns(case: Case, sink: str, run: Any, runs: int) -> dict[str, Any]:
    ours, plain, again = [], [], []
    versions, alone = [], []
    for _ in range(runs):
        plain.append(run(f"{sink}-plain"))
        ours.append(run(sink))
        again.append(run(sink))
        if (sink, case.policy) == ("postgres", "scd2"):
            versions.append(run("postgres-versions"))
            alone.append(run("postgres-alone"))
    changed = case.frame().select(case.table.column_names).nbytes
    found = {"ours": ours, "again": again, "plain": plain, "versions": versions, "alone": alone}
    return {"case": asdict(case), "sink": sink, **found, "bytes": changed}


def _child(case: Case, target: str, place: str) -> dict[str, Any]:
    out = workspace("child") / "out.json"
    kind = "spark" if target.startswith("spark") else "child"
    command = [sys.executable, "-m", f"benchmarks.policies_{kind}", json.dumps(asdict(case)), target, place, str(out)]
    ours = {} if target.endswith(("-plain", "-versions", "-alone")) else ALLOCATORS
    subprocess.run(command, cwd=PROJECT, check=True, env={**os.environ, **ours})
    found: dict[str, Any] = json.loads(out.read_text())
    print(f"{target}: {found['seconds']:.2f} s, {found['cpu']:.1f} CPU s", flush=True)
    return found
