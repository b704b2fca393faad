"""`replicator inspect`: readable records of an archive or of a source of the config."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from support import dts_sales
from support.cli_program import parse_answer, run_program

CONFIG = """\
pipeline: sales
sources:
  rds: {format: dts_avro, transport: archive, path: ./archive}
  other: {format: rows, transport: snapshots, path: ./snapshots}
sinks:
  lake: {kind: delta, path: ./lake}
dead_letters: {path: ./lake/_replicator/dead_letters}
tables:
  - {match: delta_cdc.sales, source: rds, keys: [id], to: [{sink: lake}]}
  - {match: snapshots, source: other, keys: [id], to: [{sink: lake}]}
"""


ROWS = (
    *("--set", "sources.rds.format=rows", "--set", "sources.rds.transport=delta", "--set", "sources.rds.path=null"),
    *("--set", "tables=[{match: shop.sales, source: rds, keys: [id], to: [{sink: lake}]}]"),
)
"""The source as a table of a catalog, which Spark alone knows."""


def write_archive_file(folder: Path, values: list[bytes | str]) -> Path:
    folder.mkdir()
    known = {"topic": "sales", "partition": 0, "timestamp": 7000, "headers": None, "key": None}
    said = [v if isinstance(v, str) else {"base64": base64.b64encode(v).decode()} for v in values]
    lines = [json.dumps({**known, "offset": n, "value": v}) + "\n" for n, v in enumerate(said)]
    (folder / "sales.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG)
    write_archive_file(tmp_path / "archive", [*dts_sales.make_loaded_messages(), *dts_sales.make_changed_messages()])
    return tmp_path


def inspect_source(project: Path, *arguments: str, code: int = 0) -> dict:
    done = run_program(project, "inspect", *arguments, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return parse_answer(done)


def test_full_load_of_sales(project: Path) -> None:
    """From an archive and from the source, as JSON. Nothing is written."""
    shanghai = ("--timezone", "Asia/Shanghai", "--limit", "4")
    for arguments in (("archive", "--format", "dts_avro"), ("rds",)):
        said = inspect_source(project, *arguments, *shanghai)
        assert [tuple(row.values()) for row in said["result"]] == dts_sales.PRINTED
        assert tuple(said["result"][0]) == dts_sales.NAMES and said["summary"] == "4 records"
    assert {path.name for path in project.iterdir()} == {"config", "archive"}


def test_table_output(project: Path) -> None:
    done = run_program(project, "inspect", "archive", "--format", "dts_avro", "--timezone", "Asia/Shanghai", COLUMNS="400")
    assert done.returncode == 0, done.stderr
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    assert [tuple(row) for row in cells[:4]] == [(str(row[0]), *row[1:]) for row in dts_sales.PRINTED]
    assert [row[3] for row in cells[4:]] == ["DELETE", "UPDATE", "UPDATE", "INSERT"]
    assert all(name in done.stdout for name in dts_sales.NAMES) and "error" not in done.stdout


def test_unreadable_record_has_its_reason(project: Path) -> None:
    write_archive_file(project / "more", ["junk", dts_sales.make_loaded_messages()[0]])
    rows = inspect_source(project, "more/sales.jsonl", "--format", "dts_avro")["result"]
    assert "no Avro record of DTS" in rows[0]["error"] and (rows[1]["recordID"], rows[1]["error"]) == (1, None)
    assert rows[1]["recordTimestamp"] == "1970-01-01 00:00:00"


def test_other_formats_have_the_columns_of_the_event_log(project: Path) -> None:
    write_archive_file(project / "more", [json.dumps({"_op": "c", "_version": 1, "_order": 1, "_row": 2, "id": 1})])
    [row] = inspect_source(project, "more", "--format", "rows")["result"]
    assert (row["topic"], row["offset"], row["op"], row["seq_3"], row["ts"]) == ("sales", 0, "c", 2, "1970-01-01 00:00:07")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("archive",), 2, "the format of "),
        (("archive", "--format", "dts_avr"), 2, "there is no decoder called 'dts_avr'"),
        (("nothing",), 2, "there is no source 'nothing'"),
        (("rds", "--timezone", "Asia/Shangri-La"), 2, "there is no time zone 'Asia/Shangri-La'"),
        (("other",), 2, "stores the rows that it reads"),
        (("rds", "--set", "engine=spark", "--set", "sources.rds.table=shop.sales", *ROWS), 2, "only the engine 'spark'"),
    ],
)
def test_invalid_arguments_are_refused(project: Path, arguments: tuple[str, ...], code: int, sentence: str) -> None:
    assert sentence in inspect_source(project, *arguments, code=code)["error"]["sentence"]
