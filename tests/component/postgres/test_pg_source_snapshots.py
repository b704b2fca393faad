"""Snapshots of a PostgreSQL source contain all rows of the table and no others, or are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from support.loaded_items import TABLE, PostgresItems

from adapters.sources.backfill import PostgresComparison, postgres
from replicator.domain.errors import EnvironmentProblem
from replicator.ports.reads import TableSplit

pytestmark = pytest.mark.postgres
ROWS = 40


@pytest.fixture
def items(postgres_dsn: str) -> Iterator[PostgresItems]:
    items = PostgresItems(postgres_dsn)
    yield items
    items.slot.drop()


def count_rows(items: PostgresItems, folder: Path, **options: Any) -> int:
    given = {"dsn": items.dsn, "publication": "shop", "slot": items.slot.slot, "table": TABLE, "state": str(folder)}
    comparison = PostgresComparison({**given, **options})
    with comparison.open_snapshot(lambda _: None) as snapshot:
        split = TableSplit((), snapshot.keys, None, pa.table({}))
        return sum(len(frame) for frame in snapshot.read(split, None))


def test_table_rewritten_before_its_lock_is_read_again(
    items: PostgresItems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new files of the table have no rows for older snapshots. Three attempts are made."""
    changes = [
        "ALTER TABLE items ADD COLUMN price double precision DEFAULT random()",
        f"TRUNCATE items; INSERT INTO items SELECT i FROM generate_series(1, {ROWS}) i",
    ]
    lock = postgres._lock_table

    def change_and_lock(*given: Any) -> str | None:
        if changes:
            items.execute(changes.pop(0))
        return lock(*given)

    monkeypatch.setattr(postgres, "_lock_table", change_and_lock)
    assert count_rows(items, tmp_path) == ROWS
    changes += ["VACUUM FULL items"] * postgres.TRIES
    with pytest.raises(EnvironmentProblem, match="during each of 3 attempts"):
        count_rows(items, tmp_path)


def test_rows_of_child_tables_are_not_read(items: PostgresItems, tmp_path: Path) -> None:
    """The connector sends them as rows of the child."""
    items.execute("CREATE TABLE more_items () INHERITS (items); INSERT INTO more_items VALUES (100, 'of the child', 1)")
    assert count_rows(items, tmp_path) == ROWS


def test_open_transaction_fails_the_snapshot_after_a_timeout(items: PostgresItems, tmp_path: Path) -> None:
    with items.connect() as other:
        other.execute("UPDATE items SET turn = 1")
        pid = other.info.backend_pid
        with pytest.raises(EnvironmentProblem, match=f"stayed open for longer than 1 s: pid {pid}, open for") as caught:
            count_rows(items, tmp_path, patience=1.0)
        assert "--timeout" in caught.value.next_step
        other.rollback()
    assert count_rows(items, tmp_path, patience=1.0) == ROWS


def test_missing_table_is_refused(items: PostgresItems, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"The source has no table public\.nowhere"):
        count_rows(items, tmp_path, table="public.nowhere")


def test_missing_right_is_reported_with_its_statement(items: PostgresItems, tmp_path: Path) -> None:
    user = f"weak_{items.slot.slot}"
    items.execute(f"CREATE ROLE {user} LOGIN")
    items.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    steps = [
        f'GRANT USAGE ON SCHEMA "public" TO "{user}";',
        f'ALTER ROLE "{user}" REPLICATION;',
        f'GRANT SELECT ON "public"."items" TO "{user}";',
    ]
    try:
        found = []
        for _ in steps:
            with pytest.raises(EnvironmentProblem) as caught:
                count_rows(items, tmp_path, dsn=make_conninfo(items.dsn, user=user))
            found.append(caught.value.next_step)
            items.execute(caught.value.next_step)
        assert sorted(found) == sorted(steps)
        assert count_rows(items, tmp_path, dsn=make_conninfo(items.dsn, user=user)) == ROWS
        items.execute("ALTER TABLE items ENABLE ROW LEVEL SECURITY")
        with pytest.raises(EnvironmentProblem, match="row-level security") as caught:
            count_rows(items, tmp_path, dsn=make_conninfo(items.dsn, user=user))
        assert caught.value.next_step.startswith(f'ALTER ROLE "{user}" BYPASSRLS;')
    finally:
        items.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")
