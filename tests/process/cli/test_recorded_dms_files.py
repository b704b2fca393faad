"""Recorded files of AWS DMS with header rows, whose full load has no operation column, end as they should."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from paths import GOLDEN
from support.dms_folder import set_old_time
from support.next_layer import LONG_ON_SPARK, run_until_caught_up

RECORDED = GOLDEN / "decoders" / "dms"
CONFIG = {
    "pipeline": "hr",
    "sources": {"bucket": {"format": "dms_csv", "transport": "files", "path": "./dms", "csv": {"header": True}}},
    "sinks": {"lake": {"kind": "delta", "path": "./lake"}},
    "dead_letters": {"path": "./dead_letters"},
    "tables": [{"match": "hr.employees", "source": "bucket", "keys": ["EMPLOYEE_ID"], "to": [{"sink": "lake"}]}],
    "http": {"address": "127.0.0.1:0"},
}
OTHERS = ",,,,,,,,,,"
"""The other columns of a row, as empty as PostgreSQL's deletes have them."""


def read_rows(project: Path) -> dict[str, dict[str, Any]]:
    found = DeltaTable(str(project / "lake" / "employees")).to_pyarrow_table().to_pylist()
    return {row["EMPLOYEE_ID"]: row for row in found}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_recorded_files_give_the_expected_rows(tmp_path: Path, engine: str) -> None:
    """A delete with only the key (https://github.com/apache/hudi/issues/5036) deletes the row."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(json.dumps(CONFIG))
    folder = tmp_path / "dms" / "hr" / "employees"
    shutil.copytree(RECORDED, folder, ignore=shutil.ignore_patterns("README.md"))
    deletes = folder / "20190118-190000000.csv"
    header = (folder / "20190118-184518184.csv").read_text().splitlines()[0]
    deletes.write_text(f"{header}\nD,100{OTHERS}\n")
    for file in folder.iterdir():
        set_old_time(file)
    said = run_until_caught_up(tmp_path, engine)
    (lane,) = said["result"]["lanes"]
    assert lane["counts"]["rejected"] == 0
    found = read_rows(tmp_path)
    assert len(found) == 1916 - 1 and "100" not in found
    assert (found["321"]["FIRST_NAME"], found["321"]["COMMISSION_PCT"]) == ("William115", None)
    assert found["101"]["SALARY"] == "17000.00" and found["2311"]["LAST_NAME"] == "Gietzupd2"
