"""Recorded runs of a connector that lost rows (`tests/golden/debezium_losses`): they are named, and never called exact."""

from __future__ import annotations

import psycopg
import pytest
from paths import GOLDEN
from support.cli_program import run_program

pytestmark = pytest.mark.postgres

RECORDED = GOLDEN / "debezium_losses"
CONFIG = """\
pipeline: shop
sources:
  shop: {{format: debezium_json, transport: archive, path: ./archive, transactions: {{topic: cdc.transaction}}}}
sinks: {{target: {{kind: postgres, dsn: "{dsn}", schema: public}}}}
dead_letters: {{path: ./dead_letters}}
tables:
  - {{match: public.orders, source: shop, schema: {{id: int64, note: string}}, to: [{{sink: target}}]}}
  - match: public.order_items
    source: shop
    schema: {{id: int64, order_id: int64, price: int32}}
    to: [{{sink: target}}]
"""
"""The connector wrote without schema."""
TOLD = "SELECT exact, behind FROM _replicator.transactions WHERE source = 'shop'"


@pytest.mark.parametrize("recorded", ["open_transaction", "copy"])
@pytest.mark.parametrize("version", ["3.5.0.Final", "3.7.0.Final"])
def test_records_of_a_lossy_connector_version_are_not_exact(postgres_dsn, tmp_path, recorded, version):
    """The records do not show missing rows. The connector version in them does."""
    records = (RECORDED / recorded / "archive.jsonl").read_text().replace("3.5.0.Final", version)
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "all.jsonl").write_text(records)
    (tmp_path / "config").mkdir()
    at = psycopg.conninfo.conninfo_to_dict(postgres_dsn)
    dsn = f"postgresql://{at['user']}@{at['host']}:{at['port']}/{at['dbname']}"
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG.format(dsn=dsn))
    is_known = version == "3.5.0.Final"
    for start in ("first", "second, which reads nothing new"):
        done = run_program(tmp_path, "run", "--until-caught-up")
        assert done.returncode == 0, done.stderr
        assert (done.stdout + done.stderr).count("rows may be lost") == is_known, start
        with psycopg.connect(postgres_dsn) as connection:
            assert connection.execute(TOLD).fetchone() == (not is_known, []), start
    with psycopg.connect(postgres_dsn) as connection:
        (rows,) = connection.execute("SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM order_items)").fetchone()
    there = len((RECORDED / recorded / "source.jsonl").read_text().splitlines())
    assert rows < there, "rows of the source were never sent"
