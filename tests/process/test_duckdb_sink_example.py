"""The package of `examples/duckdb-sink`: it is installed, and a pipeline writes with it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from paths import PROJECT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]

EXAMPLE = PROJECT / "examples" / "duckdb-sink"
CONFIG = """
pipeline: shop
sources:
  shop: {format: rows, transport: files, path: ./feed, files: csv, csv: {header: true}, operation_column: operation}
sinks:
  file: {kind: duckdb, path: ./shop.duckdb}
tables:
  - match: items
    source: shop
    keys: [id]
    schema: {id: int64, name: string}
    to:
      - {sink: file}
      - {sink: file, policy: scd2, into: items_history}
      - {sink: file, policy: append, into: items_log}
"""
FEED = ("id,name,operation\n1,a,INSERT\n2,b,INSERT\n", "id,name,operation\n1,c,UPDATE\n2,,DELETE\n")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip has installed the package."""
    folder = tmp_path_factory.mktemp("installed")
    options = ("--no-deps", "--no-build-isolation", "--no-compile", "--target", str(folder))
    subprocess.run([sys.executable, "-m", "pip", "-q", "install", *options, str(EXAMPLE)], check=True, capture_output=True)
    return folder


def run_python(folder: Path, installed: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def run_program(folder: Path, installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python(folder, installed, "from replicator.cli import entry; entry()", *arguments)


def run_pipeline(folder: Path, installed: Path) -> None:
    done = run_program(folder, installed, "run", "--until-caught-up")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_pipeline_writes_with_the_installed_package(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG)
    feed = tmp_path / "feed" / "items"
    feed.mkdir(parents=True)
    for number, text in enumerate(FEED, 1):
        file = feed / f"{number:06}.csv"
        file.write_text(text)
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
        run_pipeline(tmp_path, installed)
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as db:
        assert db.sql("SELECT id, name FROM items").fetchall() == [(1, "c")]
        versions = db.sql("SELECT id, name, _cdc_end_seq_1 IS NULL FROM items_history ORDER BY _cdc_seq_1, id").fetchall()
        assert sorted(versions) == [(1, "a", False), (1, "c", True), (2, "b", False)]
        assert db.sql("SELECT count(*) FROM items_log").fetchall() == [(4,)]


def test_wrong_keys_of_its_options_are_found_with_their_lines(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG.replace("path: ./shop.duckdb", "pth: ./shop.duckdb"))
    done = run_program(tmp_path, installed, "check")
    assert done.returncode == 2
    assert "replicator.yaml:6: unknown key 'pth' in sinks.file; did you mean 'path'?" in done.stdout + done.stderr


def test_its_keys_are_in_the_json_schema_and_its_driver_is_not_imported(installed: Path, tmp_path: Path) -> None:
    program = """
import sys
from replicator.settings.json_schema import build_config_schema
part = build_config_schema()["$defs"]["DuckDbOptions"]
assert set(part["properties"]) == {"engines", "kind", "path"}, part
assert part["properties"]["path"]["description"] == "The DuckDB file."
drivers = {"duckdb", "confluent_kafka", "deltalake", "psycopg", "pyspark", "sqlalchemy", "obstore"}
assert not drivers & sys.modules.keys(), drivers & sys.modules.keys()
"""
    done = run_python(tmp_path, installed, program)
    assert done.returncode == 0, done.stderr


def test_the_module_is_short_and_uses_only_published_modules() -> None:
    """`adapters/apply/__init__.py` names what is published."""
    text = (EXAMPLE / "duckdb_sink.py").read_text()
    assert len(text.splitlines()) <= 500
    published = (PROJECT / "adapters" / "apply" / "__init__.py").read_text().replace("`adapters.", "`")
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module]
    modules = [node.module for node in imports]
    assert not [module for module in modules if module.startswith("replicator.testing")]
    used = [(node.module.removeprefix("adapters."), {alias.name for alias in node.names}) for node in imports]
    used = [(module, names) for module, names in used if f"adapters.{module}" in modules]
    assert used
    for module, names in used:
        assert f"`{module}`" in published, module
        assert names <= {*re.findall(r"`(\w+)`", published), "Wanted", "DUCKDB"}, names


def test_the_page_shows_lines_of_the_module() -> None:
    page = (PROJECT / "docs" / "how-to" / "write-a-sink.md").read_text()
    text = re.sub(r"^ +", "", (EXAMPLE / "duckdb_sink.py").read_text(), flags=re.MULTILINE)
    blocks = re.findall(r'```python title="duckdb_sink.py"\n(.*?)```', page, re.DOTALL)
    assert blocks and [block for block in blocks if re.sub(r"^ +", "", block, flags=re.MULTILINE) not in text] == []
