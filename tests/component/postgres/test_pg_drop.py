"""Dropping a lane in a database is one transaction."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest
from support.pg_case import LaneWrites, apply_write, fetch_rows, make_pg_lane, make_table, open_sink

from adapters.sinks.postgres.sink import PostgresSink
from replicator.domain.errors import Fatal, Fenced

pytestmark = pytest.mark.postgres
ITEMS = make_table({"id": pa.int32(), "v": pa.int64()})


@pytest.fixture
def fill_lanes(postgres_dsn: str) -> Iterator[tuple[str, LaneWrites, PostgresSink]]:
    """A lane with rows and a tombstone, and a second lane."""
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, LaneWrites(ITEMS, make_pg_lane("other")).write({"id": 1, "v": 1}))
        feed = LaneWrites(ITEMS)
        apply_write(sink, feed.write({"id": 1, "v": 7}, {"id": 2, "v": 8}))
        apply_write(sink, feed.write({"id": 2}, op="d"))
        yield postgres_dsn, feed, sink


def list_internal_tables(dsn: str) -> set[str]:
    return {
        name
        for (name,) in fetch_rows(
            dsn, "SELECT relname FROM pg_class WHERE relnamespace = '_replicator'::regnamespace AND relkind = 'r'"
        )
    }


def test_drop_deletes_table_state_and_staging(fill_lanes: tuple[str, LaneWrites, PostgresSink]) -> None:
    dsn, feed, sink = fill_lanes
    ((number,),) = fetch_rows(dsn, "SELECT id FROM _replicator.positions WHERE lane = 'pg.items'")
    fetch_rows(dsn, f"CREATE UNLOGGED TABLE _replicator.staging_{number}_abc (a int)")
    place = "lane pg.items of pipeline tests"
    assert {one.what: one.where for one in sink.list_artifacts(feed.lane) if not one.stays} == {
        "table": "mirror.items",
        "remembered deletes": f"_replicator.tombstones_{number}",
        "staging table": f"_replicator.staging_{number}_abc",
        "schemas": f"_replicator.schemas, {place}",
        "positions": f"_replicator.positions, {place}",
    }
    sink.drop(feed.lane)
    assert fetch_rows(dsn, "SELECT to_regclass('mirror.items')") == [(None,)]
    assert list_internal_tables(dsn) == {"positions", "schema_versions", "schemas", "tombstones_1"}
    assert fetch_rows(dsn, "SELECT lane FROM _replicator.positions") == fetch_rows(
        dsn, "SELECT lane FROM _replicator.schemas"
    )
    assert fetch_rows(dsn, "SELECT id FROM mirror.other") == [(1,)] and sink.state(make_pg_lane("other"))


def test_table_comment_names_its_lane_and_pipeline(fill_lanes: tuple[str, LaneWrites, PostgresSink]) -> None:
    comment = fetch_rows(fill_lanes[0], "SELECT obj_description('mirror.items'::regclass)")
    assert comment == [("made by replicator for lane pg.items of pipeline tests",)]


def test_drop_leaves_an_existing_table_with_its_own_rows(postgres_dsn: str) -> None:
    fetch_rows(postgres_dsn, "CREATE SCHEMA mirror; CREATE TABLE mirror.items (id integer PRIMARY KEY, v bigint)")
    fetch_rows(postgres_dsn, "INSERT INTO mirror.items VALUES (1, 1), (9, 9)")
    feed = LaneWrites(ITEMS)
    with open_sink(postgres_dsn) as sink:
        assert not sink.list_artifacts(feed.lane), "no lane has written the table"
        sink.drop(feed.lane)
        assert fetch_rows(postgres_dsn, "SELECT to_regnamespace('_replicator')") == [(None,)]
        apply_write(sink, feed.write({"id": 1, "v": 7}, {"id": 2, "v": 8}))
        (table,) = [one for one in sink.list_artifacts(feed.lane) if one.stays]
        assert table.what == "table" and "existed before" in table.stays
        sink.drop(feed.lane)
        assert fetch_rows(postgres_dsn, "SELECT id, v FROM mirror.items") == [(9, 9)]
        assert not sink.list_artifacts(feed.lane) and sink.state(feed.lane) is None
        feed.offset = 0
        apply_write(sink, feed.write({"id": 1, "v": 7}))
        assert fetch_rows(postgres_dsn, "SELECT id FROM mirror.items ORDER BY 1") == [(1,), (9,)]


def test_drop_leaves_a_table_that_another_pipeline_writes(fill_lanes: tuple[str, LaneWrites, PostgresSink]) -> None:
    dsn, feed, sink = fill_lanes
    fetch_rows(
        dsn,
        """INSERT INTO _replicator.positions (pipeline, lane, target, epoch, writer)
                  VALUES ('else', 'pg.items', '"mirror"."items"', 1, '')""",
    )
    (table,) = [one for one in sink.list_artifacts(feed.lane) if one.stays]
    assert table.stays == "lane pg.items of pipeline else writes it too: it stays as it is"
    sink.drop(feed.lane)
    assert fetch_rows(dsn, "SELECT id FROM mirror.items") == [(1,)]
    assert fetch_rows(dsn, "SELECT pipeline FROM _replicator.positions WHERE lane = 'pg.items'") == [("else",)]


def test_drop_is_refused_while_a_view_depends_on_the_table(fill_lanes: tuple[str, LaneWrites, PostgresSink]) -> None:
    dsn, feed, sink = fill_lanes
    before, listed = sink.state(feed.lane), sink.list_artifacts(feed.lane)
    fetch_rows(dsn, "CREATE VIEW mirror.best AS SELECT id FROM mirror.items")
    with pytest.raises(Fatal, match=r"view mirror\.best depends on table mirror\.items") as refused:
        sink.drop(feed.lane)
    assert "Drop these first" in refused.value.next_step
    assert sink.state(feed.lane) == before and sink.list_artifacts(feed.lane) == listed
    apply_write(sink, feed.write({"id": 3, "v": 3}))
    fetch_rows(dsn, "DROP VIEW mirror.best")
    sink.drop(feed.lane)
    assert not sink.list_artifacts(feed.lane)


@pytest.mark.parametrize("after", range(1, 9))
def test_killed_drop_deletes_nothing(
    fill_lanes: tuple[str, LaneWrites, PostgresSink], after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is killed at each statement of the drop."""
    dsn, feed, sink = fill_lanes
    sink.close()
    statements = iter(range(1, 100))
    done = psycopg.Cursor.execute

    def execute(cursor, query, *args, **options):
        words = query if isinstance(query, str) else query.decode() if isinstance(query, bytes) else query.as_string(None)
        if words.startswith(("DROP", "DELETE", "COMMIT")) and next(statements) == after:
            cursor.connection.close()
            raise KeyboardInterrupt
        return done(cursor, query, *args, **options)

    with open_sink(dsn) as killed:
        before, listed = killed.state(feed.lane), killed.list_artifacts(feed.lane)
        with monkeypatch.context() as patched:
            patched.setattr(psycopg.Cursor, "execute", execute)
            try:
                killed.drop(feed.lane)
            except KeyboardInterrupt:
                pass
            else:
                assert next(statements) <= after, "the drop was not killed"
                assert after > 4 and not sink.list_artifacts(feed.lane)
                return
    with open_sink(dsn) as again:
        assert again.state(feed.lane) == before and again.list_artifacts(feed.lane) == listed
        assert apply_write(again, feed.write({"id": 3, "v": 3})).counts.applied == 1
        again.drop(feed.lane)
        assert not again.list_artifacts(feed.lane)


def test_drop_of_a_lane_of_another_instance_is_fenced(fill_lanes: tuple[str, LaneWrites, PostgresSink]) -> None:
    dsn, feed, sink = fill_lanes
    with open_sink(dsn) as other, pytest.raises(Fenced, match="written by another instance"):
        other.drop(feed.lane)
    apply_write(sink, feed.write({"id": 3, "v": 3}))
    assert len(fetch_rows(dsn, "SELECT id FROM mirror.items")) == 2


def test_drop_deletes_the_state_of_a_missing_table(fill_lanes: tuple[str, LaneWrites, PostgresSink]) -> None:
    dsn, feed, sink = fill_lanes
    fetch_rows(dsn, "DROP TABLE mirror.items")
    assert "table" not in {one.what for one in sink.list_artifacts(feed.lane)}
    sink.drop(feed.lane)
    assert not sink.list_artifacts(feed.lane)
