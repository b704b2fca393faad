"""Folders that `replicator init` cannot read, and the columns of those that it can."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from paths import GOLDEN

from adapters.sources.discovery.folder import discover_folder
from replicator.cli import main
from replicator.domain.errors import ConfigProblem

CANAL = {"database": "d", "table": "t", "type": "INSERT", "isDdl": False, "mysqlType": {"id": "int"}, "data": [{"id": "1"}]}


def to_line(value: str) -> str:
    return json.dumps({"topic": "a", "partition": 0, "offset": 0, "key": None, "value": value}) + "\n"


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def test_missing_folder_is_refused(tmp_path):
    with pytest.raises(ConfigProblem, match="there is no folder"):
        discover_folder(str(tmp_path / "gone"), None)


def test_delta_table_is_not_read_as_files(tmp_path):
    write(tmp_path, "_delta_log/00000000000000000000.json", "{}")
    write(tmp_path, "part.csv", "id,name\n1,a\n")
    with pytest.raises(ConfigProblem, match="has a Delta table"):
        discover_folder(str(tmp_path), None)


@pytest.mark.parametrize("name", ["notes.txt", ".hidden.csv", "_delta.parquet", "broken.dat"])
def test_folder_without_known_files_is_refused(tmp_path, name):
    write(tmp_path, name, "a,b\n")
    with pytest.raises(ConfigProblem, match="no files that are recognised"):
        discover_folder(str(tmp_path), None)


def test_archive_of_several_formats_is_refused(tmp_path):
    write(tmp_path, "a.jsonl", to_line(json.dumps(CANAL)))
    shutil.copy(GOLDEN / "decoders" / "debezium" / "postgres" / "cdc.public.orders.jsonl", tmp_path)
    with pytest.raises(ConfigProblem, match="several formats or topic prefixes: canal_json, debezium_json"):
        discover_folder(str(tmp_path), None)


def test_archive_without_known_records_is_refused(tmp_path):
    write(tmp_path, "a.jsonl", to_line("plain text"))
    with pytest.raises(ConfigProblem, match="has no records of a known format in a"):
        discover_folder(str(tmp_path), None)


def test_single_file_is_a_source(tmp_path):
    write(tmp_path, "staff/1.csv", "id,name\n1,a\n")
    (source,) = discover_folder(str(tmp_path / "staff" / "1.csv"), None)
    assert (source.settings["path"], source.tables[0].name) == (str(tmp_path / "staff" / "1.csv"), "staff")


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("id,name\n1,a\n", {"id": "int64", "name": "string"}),
        ("id\n", {"id": "string"}),
        ("\ufeffid\n1\n", {"id": "int64"}),
        ("a,b,c\n007,1.5,99999999999999999999\n-1,2,1\n", {"a": "string", "b": "float64", "c": "string"}),
        ('a,b\n"x, y",\n"z",\n', {"a": "string", "b": "string"}),
    ],
)
def test_columns_of_csv(tmp_path, text, schema):
    write(tmp_path, "staff/1.csv", text)
    (source,) = discover_folder(str(tmp_path), None)
    (table,) = source.tables
    assert source.settings["csv"] == {"header": True}
    assert table.settings["schema"] == schema


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1,a\n2,b\n", "has no header row, or another separator than a comma"),
        ("a,a\n1,2\n", "has no header row, or another separator than a comma"),
        ("Order Id;Total\n1;2\n", "has no header row, or another separator than a comma"),
        ("", "is empty"),
    ],
)
def test_csv_that_cannot_be_read_is_left_out_and_named(tmp_path, text, reason):
    write(tmp_path, "bad/x.csv", text)
    with pytest.raises(ConfigProblem, match=f"^bad/x.csv {reason}"):
        discover_folder(str(tmp_path), None)
    write(tmp_path, "good/1.csv", "")
    write(tmp_path, "good/2.csv", "id\n1\n")
    (source,) = discover_folder(str(tmp_path), None)
    assert {table.name: table.settings["schema"] for table in source.tables} == {"good": {"id": "int64"}}
    assert source.steps == [f"# Left out: bad/x.csv {reason}"]


def test_files_that_the_source_does_not_read_are_named(tmp_path):
    for number in range(1, 11):
        write(tmp_path, f"a/{number}.csv", "id\n1\n")
    write(tmp_path, "a/notes.txt", "")
    write(tmp_path, "b/1.jsonl", '{"id": 1}\n')
    (source,) = discover_folder(str(tmp_path), None)
    assert [table.name for table in source.tables] == ["a"]
    assert source.steps == ["# Left out, because a source reads files of one kind: b/1.jsonl"]
    for number in range(1, 8):
        write(tmp_path, f"s/t/LOAD0000000{number}.csv", "id\n1\n")
    (source,) = discover_folder(str(tmp_path), None)
    assert [table.name for table in source.tables] == ["s.t"]
    named = ", ".join(f"a/{number}.csv" for number in (1, 10, *range(2, 8)))
    assert source.steps == [f"# Left out, because a source reads files of one kind: {named} and 3 more"]


def test_wide_cell_of_csv_is_read(tmp_path):
    write(tmp_path, "staff/1.csv", f"id,text\n1,{'x' * 200_000}\n")
    (source,) = discover_folder(str(tmp_path), None)
    assert source.tables[0].settings["schema"] == {"id": "int64", "text": "string"}


def test_files_and_folders_that_cannot_be_read_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigProblem, match=r"cannot be read: .*File name too long"):
        discover_folder("x" * 300, None)
    with pytest.raises(ConfigProblem, match=r"~nobody\.here cannot be read"):
        discover_folder("~nobody.here", None)
    write(tmp_path, "staff/1.csv.gz", "")
    packed = gzip.compress(b"id\n1\n")
    (tmp_path / "staff" / "1.csv.gz").write_bytes(packed[:10] + b"\xff" * 9)
    with pytest.raises(ConfigProblem, match=r"1\.csv\.gz cannot be read"):
        discover_folder(str(tmp_path), None)
    write(tmp_path, "staff/2.parquet", "")

    def refuse(file: Path) -> None:
        raise PermissionError(f"Failed to open local file '{file}'")

    monkeypatch.setattr("pyarrow.parquet.read_schema", refuse)  # root may read every file.
    with pytest.raises(ConfigProblem, match=r"cannot be read: .*2\.parquet"):
        discover_folder(str(tmp_path), None)


def test_path_has_no_dots(tmp_path, monkeypatch):
    write(tmp_path, "staff/1.csv", "id\n1\n")
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    assert discover_folder("../staff", None)[0].settings["path"] == str(tmp_path / "staff")


def test_target_in_the_folder_that_is_read_is_refused(tmp_path, monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "staff/1.csv", "id,name\n1,a\n")
    done = CliRunner().invoke(main, ["init", "--from", "."])
    assert (done.exit_code, done.stderr.splitlines()[0]) == (2, "error: ./lake is in the source folder")
    (tmp_path / "link").symlink_to("staff")
    for lake in ("link/lake", "other/../staff/lake"):
        assert CliRunner().invoke(main, ["init", "--from", "staff", "--to", lake]).exit_code == 2, lake
    assert CliRunner().invoke(main, ["init", "--from", "staff", "--to", "staff/../lake", "a"]).exit_code == 0
    assert f"path: {tmp_path / 'a' / 'lake'}" in (tmp_path / "a" / "config" / "replicator.yaml").read_text()
    assert CliRunner().invoke(main, ["init", "--from", "./a/../staff"]).exit_code == 0
