"""Dropping a lane in a database is one transaction."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest
from support.pg_case import Feed, fetch, lane_of, open_sink, put, table_of

from adapters.sinks.postgres.sink import PostgresSink
from replicator.domain.errors import Fatal, Fenced

pytestmark = pytest.mark.postgres
ITEMS = table_of({"id": pa.int32(), "v": pa.int64()})


@pytest.fixture
def fill_lanes(postgres_dsn: str) -> Iterator[tuple[str, Feed, PostgresSink]]:
    """A lane with rows and a tombstone, and a second lane."""
    with open_sink(postgres_dsn) as sink:
        put(sink, Feed(ITEMS, lane_of("other")).write({"id": 1, "v": 1}))
        feed = Feed(ITEMS)
        put(sink, feed.write({"id": 1, "v": 7}, {"id": 2, "v": 8}))
        put(sink, feed.write({"id": 2}, op="d"))
        yield postgres_dsn, feed, sink


def list_internal_tables(dsn: str) -> set[str]:
    return {name for (name,) in fetch(dsn, "SELECT relname FROM pg_class WHERE relnamespace = '_replicator'::regnamespace "
                                           "AND relkind = 'r'")}  # fmt: skip


def test_drop_deletes_table_state_and_staging(fill_lanes: tuple[str, Feed, PostgresSink]) -> None:
    dsn, feed, sink = fill_lanes
    ((number,),) = fetch(dsn, "SELECT id FROM _replicator.positions WHERE lane = 'pg.items'")
    fetch(dsn, f"CREATE UNLOGGED TABLE _replicator.staging_{number}_abc (a int)")
    place = "lane pg.items of pipeline tests"
    assert {one.what: one.where for one in sink.list_artifacts(feed.lane) if not one.stays} == {
        "table": "mirror.items",
        "remembered deletes": f"_replicator.tombstones_{number}",
        "staging table": f"_replicator.staging_{number}_abc",
        "schemas": f"_replicator.schemas, {place}",
        "positions": f"_replicator.positions, {place}",
    }
    sink.drop(feed.lane)
    assert fetch(dsn, "SELECT to_regclass('mirror.items')") == [(None,)]
    assert list_internal_tables(dsn) == {"positions", "schema_versions", "schemas", "tombstones_1"}
    assert fetch(dsn, "SELECT lane FROM _replicator.positions") == fetch(dsn, "SELECT lane FROM _replicator.schemas")
    assert fetch(dsn, "SELECT id FROM mirror.other") == [(1,)] and sink.state(lane_of("other"))


def test_table_comment_names_its_lane_and_pipeline(fill_lanes: tuple[str, Feed, PostgresSink]) -> None:
    comment = fetch(fill_lanes[0], "SELECT obj_description('mirror.items'::regclass)")
    assert comment == [("made by replicator for lane pg.items of pipeline tests",)]


def test_drop_leaves_an_existing_table_with_its_own_rows(postgres_dsn: str) -> None:
    fetch(postgres_dsn, "CREATE SCHEMA mirror; CREATE TABLE mirror.items (id integer PRIMARY KEY, v bigint)")
    fetch(postgres_dsn, "INSERT INTO mirror.items VALUES (1, 1), (9, 9)")
    feed = Feed(ITEMS)
    with open_sink(postgres_dsn) as sink:
        assert not sink.list_artifacts(feed.lane), "no lane has written the table"
        sink.drop(feed.lane)
        assert fetch(postgres_dsn, "SELECT to_regnamespace('_replicator')") == [(None,)]
        put(sink, feed.write({"id": 1, "v": 7}, {"id": 2, "v": 8}))
        (table,) = [one for one in sink.list_artifacts(feed.lane) if one.stays]
        assert table.what == "table" and "existed before" in table.stays
        sink.drop(feed.lane)
        assert fetch(postgres_dsn, "SELECT id, v FROM mirror.items") == [(9, 9)]
        assert not sink.list_artifacts(feed.lane) and sink.state(feed.lane) is None
        feed.offset = 0
        put(sink, feed.write({"id": 1, "v": 7}))
        assert fetch(postgres_dsn, "SELECT id FROM mirror.items ORDER BY 1") == [(1,), (9,)]


def test_drop_leaves_a_table_that_another_pipeline_writes(fill_lanes: tuple[str, Feed, PostgresSink]) -> None:
    dsn, feed, sink = fill_lanes
    fetch(
        dsn,
        """INSERT INTO _replicator.positions (pipeline, lane, target, epoch, writer)
                  VALUES ('else', 'pg.items', '"mirror"."items"', 1, '')""",
    )
    (table,) = [one for one in sink.list_artifacts(feed.lane) if one.stays]
    assert table.stays == "lane pg.items of pipeline else writes it too: it stays as it is"
    sink.drop(feed.lane)
    assert fetch(dsn, "SELECT id FROM mirror.items") == [(1,)]
    assert fetch(dsn, "SELECT pipeline FROM _replicator.positions WHERE lane = 'pg.items'") == [("else",)]


def test_drop_is_refused_while_a_view_depends_on_the_table(fill_lanes: tuple[str, Feed, PostgresSink]) -> None:
    dsn, feed, sink = fill_lanes
    before, listed = sink.state(feed.lane), sink.list_artifacts(feed.lane)
    fetch(dsn, "CREATE VIEW mirror.best AS SELECT id FROM mirror.items")
    with pytest.raises(Fatal, match=r"view mirror\.best depends on table mirror\.items") as refused:
        sink.drop(feed.lane)
    assert "Drop these first" in refused.value.next_step
    assert sink.state(feed.lane) == before and sink.list_artifacts(feed.lane) == listed
    put(sink, feed.write({"id": 3, "v": 3}))
    fetch(dsn, "DROP VIEW mirror.best")
    sink.drop(feed.lane)
    assert not sink.list_artifacts(feed.lane)


@pytest.mark.parametrize("after", range(1, 9))
def test_killed_drop_deletes_nothing(
    fill_lanes: tuple[str, Feed, PostgresSink], after: int, monkeypatch: pytest.MonkeyPatch
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
        assert put(again, feed.write({"id": 3, "v": 3})).counts.applied == 1
        again.drop(feed.lane)
        assert not again.list_artifacts(feed.lane)


def test_drop_of_a_lane_of_another_instance_is_fenced(fill_lanes: tuple[str, Feed, PostgresSink]) -> None:
    dsn, feed, sink = fill_lanes
    with open_sink(dsn) as other, pytest.raises(Fenced, match="written by another instance"):
        other.drop(feed.lane)
    put(sink, feed.write({"id": 3, "v": 3}))
    assert len(fetch(dsn, "SELECT id FROM mirror.items")) == 2


def test_drop_deletes_the_state_of_a_missing_table(fill_lanes: tuple[str, Feed, PostgresSink]) -> None:
    dsn, feed, sink = fill_lanes
    fetch(dsn, "DROP TABLE mirror.items")
    assert "table" not in {one.what for one in sink.list_artifacts(feed.lane)}
    sink.drop(feed.lane)
    assert not sink.list_artifacts(feed.lane)
