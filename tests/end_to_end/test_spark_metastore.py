"""Table names in a Hive metastore, which outlives the program. Here its database is in process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.small_spark import SMALL

from .daemon import PROGRAM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SAMPLES = Path(__file__).parents[1] / "golden" / "decoders" / "debezium" / "postgres"
READ = """
import json, sys
from adapters.spark.session import open_session

options, statements = json.loads(sys.argv[1])
spark = open_session(options)
print(json.dumps([[list(map(str, row)) for row in spark.sql(one).collect()] for one in statements]))
"""


class Shop:
    """A project whose lake has names in a private metastore."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "archive").mkdir()
        shutil.copyfile(SAMPLES / "cdc.public.products.jsonl", folder / "archive" / "products.jsonl")
        self.spark = {
            **SMALL,
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
        }
        to: list[dict[str, Any]] = [
            {"sink": "lake", "deletes": "soft"},
            {"sink": "lake", "into": "It's History", "policy": "scd2"},
        ]
        document = {
            "pipeline": "shop",
            "engine": "spark",
            "spark": self.spark,
            "sources": {"shop": {"format": "debezium_json", "transport": "archive", "path": "./archive"}},
            "sinks": {"lake": {"kind": "delta", "path": "./lake", "schema": "shop"}},
            "dead_letters": {"path": "./dead_letters"},
            "tables": [{"match": "public.products", "source": "shop", "to": to}],
            "http": {"address": "127.0.0.1:0"},
        }
        (folder / "config").mkdir()
        (folder / "config" / "replicator.yaml").write_text(json.dumps(document))

    def run_command(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        done = self._run(PROGRAM, *arguments, "--json", "-q")
        return done.returncode, json.loads(done.stdout)

    def read(self, *statements: str) -> list[list[list[str]]]:
        """The rows that other programs with the same metastore read."""
        done = self._run(sys.executable, "-c", READ, json.dumps([self.spark, statements]))
        assert done.returncode == 0, done.stderr[-2000:]
        found: list[list[list[str]]] = json.loads(done.stdout.splitlines()[-1])
        return found

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        # The database leaves its log where it is started.
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.long
def test_other_programs_find_tables_until_they_are_dropped(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    code, said = shop.run_command("run", "--until-caught-up")
    assert code == 0, said
    count = "SELECT count(*), count_if(_cdc_deleted) FROM shop.{}"
    names, [rows], [living], versions, current = shop.read(
        "SHOW TABLES IN shop",
        count.format("products"),
        count.format("products_living"),
        "SELECT sku FROM shop.it_x0027_s_x0020_history WHERE _cdc_end_seq_1 IS NULL ORDER BY sku",
        "SELECT sku FROM shop.It_x0027_s_x0020_History_current ORDER BY sku",
    )
    history = "it_x0027_s_x0020_history"
    assert sorted(name for _, name, _ in names) == [history, f"{history}_current", "products", "products_living"]
    assert int(rows[1]) > 0 and living == [str(int(rows[0]) - int(rows[1])), "0"]
    assert current == versions and current
    code, said = shop.run_command("drop", "lake.It's History", "--yes")
    assert code == 0, said
    found = {(one["what"], one["where"]) for one in said["result"]["belongings"]}
    name = "spark_catalog.shop.It_x0027_s_x0020_History"
    assert {("name", name), ("view", f"{name}_current")} <= found
    names, [after] = shop.read("SHOW TABLES IN shop", count.format("products_living"))
    assert sorted(name for _, name, _ in names) == ["products", "products_living"] and after == living
