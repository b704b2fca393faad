"""After snapshot n a target equals it (type 1), or contains the history of all snapshots (type 2), wherever runs end."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from support.exported_records import (
    DECLARED,
    Row,
    compute_versions,
    make_random_snapshots,
    write_parquet_snapshot,
    write_text_snapshot,
)

from replicator import pipelines as dp
from replicator.application.operations.lanes import resync_lane
from replicator.domain.errors import ExitCode
from replicator.settings import load_settings
from replicator.wiring.components import ConfiguredComponents
from replicator.wiring.configuration import list_plugins

pytestmark = pytest.mark.filterwarnings("ignore:no table matched")  # Until the first row.
EXAMPLES = int(os.environ.get("REPLICATOR_EXAMPLES", "8"))
KEY = ["id", "Part"]
COLUMNS = (*KEY, "name", "price")
SOURCES = {"export": {"format": "rows", "transport": "snapshots", "path": "./items", "allow_empty": True}}


def pipeline(folder: Path, sinks: dict[str, Any], keys: list[str] = KEY, **changed: Any) -> dp.Pipeline:
    parts = {"sources": SOURCES, "sinks": sinks, "dead_letters": {"path": "./dead_letters"}, "root": folder, **changed}
    built = dp.Pipeline("exports", **parts)
    for sink in sinks:
        built.create_auto_cdc_from_snapshot_flow(f"{sink}.items", "export.items", keys)
        built.create_auto_cdc_from_snapshot_flow(f"{sink}.items_history", "export.items", keys, stored_as_scd_type=2)
    return built


def of_delta(folder: Path) -> tuple[list[tuple], list[tuple]]:
    def rows(table: str) -> list[dict[str, Any]]:
        path = folder / "lake" / table
        # A target is created with its first row.
        return DeltaTable(str(path)).to_pyarrow_table().to_pylist() if path.exists() else []

    return current(rows("items")), history(rows("items_history"))


def current(rows: list[dict[str, Any]]) -> list[tuple]:
    return sorted((tuple(row[name] for name in COLUMNS) for row in rows), key=repr)


def history(rows: list[dict[str, Any]]) -> list[tuple]:
    names = (*COLUMNS, "_cdc_seq_1", "_cdc_end_seq_1")
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


def run_each_snapshot(rng: random.Random, folder: Path, run: Any, check: Any) -> None:
    """Snapshots arrive, and a run finds none, one or several; each run is a separate program."""
    states = make_random_snapshots(rng, rng.randrange(2, 6))
    versions = sorted(rng.sample(range(100), len(states)))
    taken: list[tuple[int, list[Row]]] = []
    for version, rows in zip(versions, states, strict=True):
        taken.append((version, rows))
        file = write_parquet_snapshot(folder, version, rows)
        if rng.random() < 0.7 or len(taken) == len(states):
            run()
            check(sorted(rows, key=repr), sorted(compute_versions(taken), key=repr))
            if rng.random() < 0.5:
                file.unlink()


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_delta_equals_the_snapshots(tmp_path, seed):
    lake = {"lake": {"kind": "delta", "path": "./lake"}}

    def check(rows: list[Row], versions: list[tuple]) -> None:
        assert of_delta(tmp_path) == (rows, versions)

    def run() -> None:
        pipeline(tmp_path, lake).run(until_caught_up=True)

    run_each_snapshot(random.Random(seed), tmp_path, run, check)


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_delta_equals_text_snapshots(tmp_path, seed):
    rng = random.Random(2000 + seed)
    kind, suffix = rng.choice([("csv", ".csv"), ("csv", ".csv.gz"), ("jsonl", ".jsonl")])
    source = {**SOURCES["export"], "files": kind, **({"csv": {"header": True}} if kind == "csv" else {})}
    to = [{"sink": "lake"}, {"sink": "lake", "into": "items_history", "policy": "scd2"}]
    table = {"match": "items", "source": "export", "keys": KEY, "schema": DECLARED, "to": to}
    parts = {"sources": {"export": source}, "sinks": {"lake": {"kind": "delta", "path": "./lake"}}, "tables": [table]}
    taken: list[tuple[int, list[Row]]] = []
    for version, rows in enumerate(make_random_snapshots(rng, rng.randrange(2, 5))):
        taken.append((version, rows))
        write_text_snapshot(tmp_path, f"{version}{suffix}", rows)
        dp.Pipeline("texts", **parts, dead_letters={"path": "./dead"}, root=tmp_path).run(until_caught_up=True)
        assert of_delta(tmp_path) == (sorted(rows, key=repr), sorted(compute_versions(taken), key=repr))


@pytest.mark.postgres
@pytest.mark.parametrize("seed", range(max(1, EXAMPLES // 4)))
def test_postgresql_equals_the_snapshots(tmp_path, postgres_server, seed):
    dsn = f"postgresql://tester@127.0.0.1:{postgres_server.port}/{conninfo_to_dict(postgres_server.database())['dbname']}"

    def rows(table: str) -> list[dict[str, Any]]:
        with psycopg.connect(dsn, row_factory=dict_row) as connection:
            there = connection.execute("SELECT to_regclass(%s) AS found", [table]).fetchone()["found"]
            return connection.execute(f"SELECT * FROM {table}").fetchall() if there else []

    def check(current_rows: list[Row], versions: list[tuple]) -> None:
        assert current(rows("items")) == current_rows
        assert history(rows("items_history")) == versions

    def run() -> None:
        pipeline(tmp_path, {"db": {"kind": "postgres", "dsn": dsn}}).run(until_caught_up=True)

    run_each_snapshot(random.Random(1000 + seed), tmp_path, run, check)


def test_lane_that_starts_later_reads_every_snapshot(tmp_path, monkeypatch):
    """It reads all snapshots taken so far, with one row or many in a batch."""
    first = {"sinks": {"lake": {"kind": "delta", "path": "./lake"}}, "sources": SOURCES, "root": tmp_path}
    states = make_random_snapshots(random.Random(7), 5)
    for version, rows in enumerate(states):
        write_parquet_snapshot(tmp_path, version, rows).parent.mkdir(exist_ok=True)
        one = dp.Pipeline("exports", **first, dead_letters={"path": "./dead"}, limits={"batch_bytes": 1})
        one.create_auto_cdc_from_snapshot_flow("lake.items", "export.items", KEY)
        if version > 2:
            one.create_auto_cdc_from_snapshot_flow("lake.items_history", "export.items", KEY, 2)
        one.run(until_caught_up=True)
        (tmp_path / "items" / f"{version}.parquet").unlink()
    expected = sorted(states[-1], key=repr), sorted(compute_versions(list(enumerate(states))), key=repr)
    assert of_delta(tmp_path) == expected


def test_only_tracked_columns_create_versions(tmp_path):
    lake = {"lake": {"kind": "delta", "path": "./lake"}}
    one = dp.Pipeline("exports", sources=SOURCES, sinks=lake, dead_letters={"path": "./dead"}, root=tmp_path)
    one.create_auto_cdc_from_snapshot_flow("lake.items_history", "export.items", KEY, 2, track_history_column_list=["name"])
    for version, price in enumerate((1.0, 2.0, 3.0)):
        write_parquet_snapshot(tmp_path, version, [(1, "a", "x" if version < 2 else "y", price)])
    one.run(until_caught_up=True)
    rows = history(DeltaTable(str(tmp_path / "lake" / "items_history")).to_pyarrow_table().to_pylist())
    assert rows == [(1, "a", "x", 2.0, 0, 2), (1, "a", "y", 3.0, 2, None)]


def test_empty_snapshot_stops_the_program(tmp_path):
    lake = {"lake": {"kind": "delta", "path": "./lake"}}
    changed = {"sources": {"export": {**SOURCES["export"], "allow_empty": False}}}
    write_parquet_snapshot(tmp_path, 1, [(1, "a", "x", 1.0)])
    pipeline(tmp_path, lake, **changed).run(until_caught_up=True)
    write_parquet_snapshot(tmp_path, 2, [])
    with pytest.raises(dp.RunFailed, match="has no rows") as caught:
        pipeline(tmp_path, lake, **changed).run(until_caught_up=True)
    assert caught.value.exit_code is ExitCode.DATA_LOSS
    assert len(of_delta(tmp_path)[0]) == 1


def test_resync_recovers_a_lost_state(tmp_path):
    """The message of the data loss recommends it."""
    lake = {"lake": {"kind": "delta", "path": "./lake"}}
    write_parquet_snapshot(tmp_path, 1, [(1, "a", "x", 1.0), (2, "a", "x", 1.0)])
    one = pipeline(tmp_path, lake)
    one.run(until_caught_up=True)
    shutil.rmtree(tmp_path / "state" / "exports" / "kept")
    (tmp_path / "items" / "1.parquet").unlink()
    write_parquet_snapshot(tmp_path, 2, [(2, "a", "y", 1.0)])
    with pytest.raises(dp.RunFailed, match="was created again") as caught:
        one.run(until_caught_up=True)
    assert caught.value.exit_code is ExitCode.DATA_LOSS
    resync_lanes(one, tmp_path)
    assert of_delta(tmp_path) == ([(2, "a", "y", 1.0)], [(2, "a", "y", 1.0, 2, None)])


def resync_lanes(one: dp.Pipeline, folder: Path) -> None:
    file = folder / "config" / "replicator.yaml"
    file.parent.mkdir()
    file.write_text(json.dumps(one.config()))
    for lane in ("lake.items", "lake.items_history"):
        resync_lane(ConfiguredComponents(load_settings(file, plugins=list_plugins())), lane)
    one.run(until_caught_up=True)


@pytest.mark.parametrize(("wrong", "right"), [(["id"], KEY), (KEY, ["id"])])
def test_corrected_keys_need_a_resync(tmp_path, wrong, right):
    """A target never has rows of both keys, and lacks no rows. The program stops, and its advice repairs the target."""
    lake = {"lake": {"kind": "delta", "path": "./lake"}}
    one = pipeline(tmp_path, lake, wrong)
    for version, part in enumerate("ab"):
        write_parquet_snapshot(tmp_path, version, [(1, part, "x", 1.0), (2, "a", "x", 1.0)])
        one.run(until_caught_up=True)
    last = [(1, "b", "x", 1.0), (2, "a", "x", 1.0)]
    assert of_delta(tmp_path)[0] == last
    one = pipeline(tmp_path, lake, right)
    with pytest.raises(dp.RunFailed, match="compared by the keys") as caught:
        one.run(until_caught_up=True)
    assert caught.value.exit_code is ExitCode.DATA_LOSS and "resync" in str(caught.value)
    shutil.rmtree(tmp_path / "state" / "exports" / "kept" / "export")
    resync_lanes(one, tmp_path)
    assert of_delta(tmp_path)[0] == last


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": lambda version: None}, "is a function; write snapshots into a folder"),
        ({"source": "feed.items"}, "transport 'delta', which does not read snapshots"),
        ({"once": True}, "create_auto_cdc_from_snapshot_flow() has no parameter 'once'"),
        ({"stored_as_scd_type": "bitemporal"}, "'bitemporal', which is not supported"),
    ],
)
def test_invalid_snapshot_flow_is_refused(given, message):
    feed = {"feed": {"format": "rows", "transport": "delta", "path": "./feed"}}
    one = dp.Pipeline("exports", sources={**SOURCES, **feed}, sinks={"lake": {"kind": "delta", "path": "./lake"}})
    with pytest.raises(dp.ConfigError) as caught, one:
        dp.create_auto_cdc_from_snapshot_flow(**{"target": "lake.items", "source": "export.items", "keys": KEY, **given})
    assert message in str(caught.value)
