"""A row that waits for another row in a PostgreSQL target: the remedy of its dead letter, followed literally."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.debezium_events import ID, make_column
from support.schema_changes import Project, make_archive_record

pytestmark = pytest.mark.postgres

PARENT = make_column("parent", "int32")


def row(number: int, parent: int | None, offset: int) -> dict[str, Any]:
    return dict(make_archive_record("t", offset, [ID, PARENT], [ID], after={"id": number, "parent": parent}))


def test_waiting_dead_letter_is_retried_when_the_other_row_exists(tmp_path: Path, postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE SCHEMA IF NOT EXISTS mirror; "
            "CREATE TABLE mirror.t (id integer PRIMARY KEY, parent integer REFERENCES mirror.t)"
        )
    project = Project(tmp_path, {"t": ""}, postgres_dsn)
    project.configure(("kind: postgres,", "kind: postgres, schema: mirror,"))
    project.feed("a", [row(1, None, 0), row(2, 7, 1)])
    assert project.run()["mirror.t"]["status"] == "running"
    [letter] = project.run_command("dlq", "list")["result"]
    [explained] = project.run_command("dlq", "explain", letter["event_id"])["result"]
    assert explained["lane"] == "mirror.t" and "it waits for its row of table" in explained["sentence"]
    assert explained["what_to_do"] == "Replay the record when the other row exists, or is deleted: `replicator dlq replay`."
    assert project.run_command("dlq", "replay")["result"] == {"replayed": 0, "rejected": 1, "left": {}}, (
        "the other row does not exist yet"
    )
    project.feed("b", [row(7, None, 2)])
    project.run()
    assert project.run_command("dlq", "replay")["result"] == {"replayed": 1, "rejected": 0, "left": {}}
    with psycopg.connect(postgres_dsn) as connection:
        found = connection.execute("SELECT id, parent FROM mirror.t ORDER BY id").fetchall()
    assert found == [(1, None), (2, 7), (7, None)]
    assert [letter["state"] for letter in project.run_command("dlq", "list", "--state", "all")["result"]] == ["replayed"]
