"""`replicator init --from FOLDER` recognises the folder, and its config runs."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from paths import GOLDEN
from ruamel.yaml import YAML
from support.cli_program import run_program

DECODERS = GOLDEN / "decoders"
RECORDED = DECODERS / "debezium" / "postgres"
STAFF = pa.table({"op": ["I", "U"], "id": [1, 1], "name": ["a", "b"]})


def make_archive(folder: Path) -> None:
    for name in ("orders", "audit_log"):
        shutil.copy(RECORDED / f"cdc.public.{name}.jsonl", folder)


def make_sink_files(folder: Path) -> None:
    records = map(json.loads, (RECORDED / "cdc.public.orders.jsonl").read_text().splitlines())
    values = [record["value"] for record in records if record["value"] is not None]
    (folder / "cdc.public.orders+0+0000000000.json").write_text("".join(f"{value}\n" for value in values))


def make_dms(folder: Path) -> None:
    (folder / "shop" / "users").mkdir(parents=True)
    for name in ("LOAD00000001.csv.gz", "20190118-184518184.csv"):
        shutil.copy(DECODERS / "dms" / name, folder / "shop" / "users")


def make_dms_without_header(folder: Path) -> None:
    (folder / "shop" / "users").mkdir(parents=True)
    (folder / "shop" / "users" / "LOAD00000001.csv").write_text("7,ann,1.5\n8,bob,\n")
    (folder / "shop" / "users" / "20211017-194324349.csv").write_text("I,9,cid,2\nU,7,eve,1.5\n")


def make_dms_parquet(folder: Path) -> None:
    (folder / "shop" / "users").mkdir(parents=True)
    pq.write_table(STAFF.rename_columns(["Op", "id", "name"]), folder / "shop" / "users" / "20211017-194324349.parquet")


def make_csv(folder: Path) -> None:
    (folder / "staff").mkdir()
    (folder / "staff" / "1.csv").write_text("op,id,name\nI,1,a\nU,1,b\n")
    with gzip.open(folder / "staff" / "2.csv.gz", "wt") as packed:
        packed.write("op,id,name\nI,007,c\n")
    (folder / "bare").mkdir()
    (folder / "bare" / "1.csv").write_text("1;2\n3;4\n")  # Left out.


def make_json_lines(folder: Path) -> None:
    (folder / "staff").mkdir()
    (folder / "staff" / "1.jsonl").write_text('{"id": 1, "score": 1.5}\n{"id": 2, "score": 2}\n')


def make_parquet(folder: Path) -> None:
    (folder / "staff").mkdir()
    pq.write_table(STAFF, folder / "staff" / "1.parquet")


KINDS: list[tuple[Callable[[Path], None], dict[str, Any], dict[str, Any], dict[str, int]]] = [
    (make_archive, {"format": "debezium_json", "transport": "archive"}, {}, {"orders": 3, "audit_log": 6}),
    (make_sink_files, {"format": "debezium_json", "transport": "archive", "files": "connect"}, {}, {"orders": 5}),
    (make_dms, {"format": "dms_csv", "transport": "files", "csv": {"header": True}}, {}, {"users": 1917}),
    (
        make_dms_without_header,
        {"format": "dms_csv", "transport": "files"},
        {"schema": {"column_1": "int64", "column_2": "string", "column_3": "float64"}},
        {"users": 4},
    ),
    (make_dms_parquet, {"format": "dms_parquet", "transport": "files"}, {}, {"users": 2}),
    (
        make_csv,
        {"format": "rows", "transport": "files", "files": "csv", "csv": {"header": True}, "operation_column": "op"},
        {"schema": {"op": "string", "id": "int64", "name": "string"}},
        {"staff": 3},
    ),
    (
        make_json_lines,
        {"format": "rows", "transport": "files", "files": "jsonl"},
        {"schema": {"id": "int64", "score": "float64"}},
        {"staff": 2},
    ),
    (
        make_parquet,
        {"format": "rows", "transport": "files", "files": "parquet", "operation_column": "op"},
        {},
        {"staff": 2},
    ),
]


@pytest.mark.parametrize(("make", "source", "table", "rows"), KINDS, ids=[make.__name__[5:] for make, *_ in KINDS])
def test_folder_is_recognised_and_its_config_runs(make, source, table, rows, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    make(folder)
    for arguments in (["init", "--from", "data"], ["check"]):
        done = run_program(tmp_path, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    config = YAML(typ="safe").load((tmp_path / "config" / "replicator.yaml").read_text())
    (written,) = config["sources"].values()
    assert written == {**source, "path": "./data"}
    assert {name: config["tables"][0].get(name) for name in table} == table
    (name,) = config["sources"]
    settle = [] if make is make_archive else ["--set", f"sources.{name}.settle=0 seconds"]  # Nobody waits for files.
    done = run_program(tmp_path, "run", "--until-caught-up", "--set", "http.address=127.0.0.1:0", *settle)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {name: len(DeltaTable(tmp_path / "lake" / name).to_pyarrow_table()) for name in rows} == rows
