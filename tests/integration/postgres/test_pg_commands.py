"""The commands on a target in PostgreSQL, as people type them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import psycopg
import pytest
from paths import GOLDEN
from support.cli_program import parse_answer, run_program
from support.pg_case import fetch_rows

SAMPLE = GOLDEN / "decoders" / "debezium" / "postgres" / "cdc.public.products.jsonl"
CONFIG = """\
pipeline: shop
sources:
  recorded: {format: debezium_json, transport: archive, path: ./archive}
sinks:
  mirror: {kind: postgres, dsn: "${MIRROR_DSN}", schema: mirror}
  raw: {kind: event_log, dsn: "${MIRROR_DSN}"}
dead_letters: {path: ./dead_letters}
tables:
  - match: public.*
    source: recorded
    to: [{sink: raw}, {sink: mirror}]
http: {address: "127.0.0.1:0"}
"""

pytestmark = pytest.mark.postgres


class Project:
    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder, self.dsn = folder, dsn
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
        self.url = f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"
        (folder / "config").mkdir()
        (folder / "archive").mkdir()
        shutil.copyfile(SAMPLE, folder / "archive" / SAMPLE.name)
        (folder / "config" / "replicator.yaml").write_text(CONFIG)

    def run(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        done = run_program(self.folder, *arguments, "--json", MIRROR_DSN=self.url)
        assert done.returncode == code, done.stdout + done.stderr
        return dict(parse_answer(done))

    def rows(self) -> list[tuple[Any, ...]]:
        return fetch_rows(self.dsn, "SELECT sku, _cdc_seq_1, _cdc_seq_2 FROM mirror.products ORDER BY sku")


@pytest.fixture
def project(tmp_path: Path, postgres_dsn: str) -> Project:
    return Project(tmp_path, postgres_dsn)


def test_drop_removes_the_target(project: Project) -> None:
    project.run("run", "--until-caught-up")
    before = project.rows()
    assert before and project.run("plan", "products")["ok"]
    assert "a confirmation needs a terminal" in project.run("drop", "products", code=2)["error"]["sentence"]
    assert "raw is an event log" in project.run("drop", "raw", "--yes", code=2)["error"]["sentence"]
    parts = {one["what"]: one for one in project.run("drop", "mirror.products", "--yes")["result"]["belongings"]}
    assert set(parts) >= {"table", "schemas", "positions", "register entry"} and parts["table"]["where"] == "mirror.products"
    assert fetch_rows(project.dsn, "SELECT to_regclass('mirror.products')") == [(None,)]
    assert fetch_rows(project.dsn, "SELECT lane FROM _replicator.positions") == [("raw.recorded",)]
    project.run("drop", "mirror.products", "--yes", code=2)
    project.run("run", "--until-caught-up")
    assert project.rows() == before


def test_drop_keeps_a_table_that_the_user_created(project: Project) -> None:
    fetch_rows(project.dsn, "CREATE SCHEMA mirror; CREATE TABLE mirror.products (sku text PRIMARY KEY, mine integer)")
    fetch_rows(project.dsn, "INSERT INTO mirror.products VALUES ('own', 1)")
    project.run("run", "--until-caught-up")
    before = project.rows()
    (table,) = [one for one in project.run("drop", "products", "--yes")["result"]["belongings"] if one["stays"]]
    assert table["what"] == "table" and project.rows() == [("own", None, None)]
    project.run("run", "--until-caught-up")
    assert project.rows() == before


def test_second_pipeline_for_the_same_table_is_refused(project: Project) -> None:
    """With `append` every row would be there twice. `check` reports it too, and the target of the first pipeline stays
    unchanged."""
    config = project.folder / "config" / "replicator.yaml"
    entry = "[{sink: mirror, policy: append}]"
    config.write_text(CONFIG.replace("public.*", "public.products").replace("[{sink: raw}, {sink: mirror}]", entry))
    project.run("run", "--until-caught-up")
    before = project.rows()
    config.write_text(config.read_text().replace("pipeline: shop", "pipeline: other"))
    said = "table products is written by lane mirror.products of pipeline shop"
    assert said in str(project.run("doctor", code=3)["result"])
    assert [said in str(lane["problem"]) for lane in project.run("plan")["result"]] == [True]
    (lane,) = project.run("run", "--until-caught-up", code=2)["result"]["lanes"]
    assert said in lane["error"]
    project.run("lanes", "resync", "mirror.products", "--yes", code=2)
    assert project.rows() == before
    config.write_text(config.read_text().replace("pipeline: other", "pipeline: shop"))
    project.run("run", "--until-caught-up")
    assert project.rows() == before
    remedy = re.search(r"DELETE FROM.*?;", lane["next_step"])
    assert remedy is not None
    fetch_rows(project.dsn, remedy[0])
    config.write_text(config.read_text().replace("pipeline: shop", "pipeline: other"))
    project.run("lanes", "resync", "mirror.products", "--yes")
    project.run("run", "--until-caught-up")
    assert project.rows() == before
