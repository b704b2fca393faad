"""The past of a target in PostgreSQL, which keeps no versions: out of the event log, as a lake's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from paths import GOLDEN
from psycopg.conninfo import conninfo_to_dict
from support.cli_program import parse_answer, run_program

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

SAMPLES = GOLDEN / "decoders" / "debezium" / "postgres"
CONFIG = """\
pipeline: shop
sources:
  recorded: {{format: debezium_json, transport: archive, path: {archive}}}
sinks:
  target: {{kind: postgres, dsn: "{dsn}", schema: mirror}}
  lake: {{kind: delta, path: ./lake}}
  raw: {{kind: event_log, {log}}}
dead_letters: {{path: ./dead_letters}}
tables:
  - match: public.orders
    source: recorded
    to: [{{sink: raw}}, {{sink: target}}, {{sink: lake}}]
http: {{address: "127.0.0.1:0"}}
"""


def url(dsn: str) -> str:
    parts = conninfo_to_dict(dsn)
    return f"postgresql://{parts['user']}:{parts.get('password', '')}@{parts['host']}:{parts['port']}/{parts['dbname']}"


def ask(folder: Path, *words: str) -> Any:
    done = run_program(folder, *words, "--json", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    return parse_answer(done)["result"]


def rows(folder: Path, name: str, at: str) -> list[str]:
    found = ask(folder, "query", name, "--as-of", at)
    return sorted(repr({n: v for n, v in row.items() if n != "_cdc_applied_at"}) for row in found)


@pytest.mark.parametrize("log", [pytest.param("path: ./lake/cdc_events", marks=pytest.mark.long), 'dsn: "{dsn}"'])
def test_rows_as_of_a_time(postgres_dsn: str, tmp_path: Path, log: str) -> None:
    """Also a rebuild of the target in the database. The event log is in a lake or in the database."""
    (tmp_path / "config").mkdir()
    at = url(postgres_dsn)
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG.format(archive=SAMPLES, dsn=at, log=log.format(dsn=at)))
    ran = run_program(tmp_path, "run", "--until-caught-up", "-q")
    assert ran.returncode == 0, ran.stderr
    for at in ("2026-11-20T17:47:00+0000", "2026-11-20T17:47:26.857000+0000"):
        found = rows(tmp_path, "target.orders", at)
        assert found and found == rows(tmp_path, "lake.orders", at)
    place = ask(tmp_path, "history", "public.orders", "10")[-1]
    at = f"{place['topic']}:{place['partition']}:{place['offset']}"
    assert rows(tmp_path, "target.orders", at) == rows(tmp_path, "target.orders", place["at"].replace("Z", "+0000"))
    assert rows(tmp_path, "target.orders", at) == rows(tmp_path, "lake.orders", at)
    ask(tmp_path, "replay", "public.orders", "--lane", "target.orders", "--into", "orders_again")
    again, now = (ask(tmp_path, "query", f"target.{name}") for name in ("orders_again", "orders"))
    for row in (*again, *now):
        del row["_cdc_applied_at"]
    assert len(now) == 3 and sorted(map(repr, again)) == sorted(map(repr, now))
    said = ask(tmp_path, "replay", "public.orders", "--lane", "target.orders", "--dry-run")
    assert (said["same"], said["only_live"], said["only_rebuilt"], said["differing"], said["exact"]) == (3, 0, 0, 0, True)
    said = ask(tmp_path, "replay", "public.orders", "--lane", "target.orders")
    after = ask(tmp_path, "query", "target.orders")
    for row in after:
        del row["_cdc_applied_at"]
    assert said["lane"] == "target.orders" and sorted(map(repr, after)) == sorted(map(repr, now))
