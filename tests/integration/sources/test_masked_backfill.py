"""`replicator backfill` of a table with private columns: no file of the project has a value of them, and the lake ends as
the table is."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from psycopg.conninfo import conninfo_to_dict
from servers.kafka import Broker
from support.cli_program import parse_answer, run_program

pytestmark = [pytest.mark.stack, pytest.mark.postgres, pytest.mark.timeout(300)]

KEY = "0123456789abcdef-of-masks"
SLOT = "private_backfill"
CONFIG = """\
pipeline: people
sources:
  shop:
    format: debezium_json
    transport: kafka
    bootstrap_servers: {broker}
    topics: [private.public.people]
    database: {{dsn: "{dsn}", publication: people, slot: {slot}}}
sinks:
  lake: {{kind: delta, path: ./lake}}
  raw: {{kind: event_log, path: ./lake/cdc_events}}
dead_letters: {{path: ./dead_letters}}
tables:
  - match: public.people
    source: shop
    columns:
      id: {{mask: hmac, key: "${{MASK_KEY}}"}}
      email: {{mask: hmac, key: "${{MASK_KEY}}"}}
      phone: {{mask: nothing}}
    to: [{{sink: raw}}, {{sink: lake}}, {{sink: lake, into: renamed, columns: {{id: {{rename: pk}}}}}}]
http: {{address: "127.0.0.1:0"}}
"""
FIRST, NUMBER = 47_110_000, 40
SECRETS = ("@example.com", "0176-", *map(str, range(FIRST, FIRST + NUMBER)))


def digest(value: object) -> str:
    return hmac.new(KEY.encode(), str(value).encode(), hashlib.sha256).hexdigest()


def backfill(project: Path) -> dict[str, Any]:
    done = run_program(project, "backfill", "public.people", "--json", "-q", seconds=200, MASK_KEY=KEY)
    assert done.returncode == 0, done.stdout + done.stderr
    said: dict[str, Any] = parse_answer(done)["result"]
    return said


def read_stored_bytes(project: Path) -> str:
    """All that files hold, whatever they are compressed with."""
    texts = []
    for path in (file for file in project.rglob("*") if file.is_file() and "config" not in file.parts):
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            texts.append(f"{table.to_pylist()} {table.schema.metadata}")
        else:
            texts.append(path.read_bytes().decode(errors="replace"))
    return "\n".join(texts)


def test_no_stored_file_holds_private_values(tmp_path: Path, broker: Broker, postgres_dsn: str) -> None:
    broker.create("private.public.people")
    (tmp_path / "config").mkdir()
    said = conninfo_to_dict(postgres_dsn)
    dsn = f"postgresql://{said['user']}@{said['host']}:{said['port']}/{said['dbname']}"
    config = CONFIG.format(broker=broker.address, dsn=dsn, slot=SLOT)
    (tmp_path / "config" / "replicator.yaml").write_text(config)
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE people (id int PRIMARY KEY, email text, phone text, city text)")
        connection.execute("CREATE PUBLICATION people FOR TABLE people")
        connection.execute(
            "INSERT INTO people SELECT i, 'p' || i || '@example.com', '0176-' || i, 'Rome' "
            "FROM generate_series(%s::int, %s) i",
            (FIRST, FIRST + NUMBER - 1),
        )
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        assert backfill(tmp_path)["rows"] == NUMBER
        connection.execute("DELETE FROM people WHERE id %% 4 = 0", ())
        again = backfill(tmp_path)
        left = [row[0] for row in connection.execute("SELECT id FROM people")]
    assert (again["deleted"], sorted(again["deletes_of"])) == (NUMBER - len(left), ["lake.people", "lake.renamed"])
    for table, name in (("people", "id"), ("renamed", "pk")):
        rows = DeltaTable(str(tmp_path / "lake" / table)).to_pyarrow_table().to_pylist()
        found = {row[name]: (row["email"], row["phone"], row["city"]) for row in rows}
        assert found == {digest(i): (digest(f"p{i}@example.com"), None, "Rome") for i in left}, table
    kept = read_stored_bytes(tmp_path)
    assert "_backfill.public.people" in kept and digest(left[0]) in kept
    assert [secret for secret in SECRETS if secret in kept] == []
