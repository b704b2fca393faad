"""A rebuilt table replaces the lane's own table in one transaction, with the objects that others made on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from support.pg_case import LaneWrites, apply_write, fetch_rows, make_pg_lane, make_table, open_sink

from adapters.sinks.postgres import lane_objects
from adapters.sinks.postgres.sink import PostgresSink
from replicator.domain.errors import Fatal, Fenced
from replicator.domain.policy.plan import LaneState
from replicator.domain.transform.rows import RowTransforms

pytestmark = pytest.mark.postgres
ITEMS = make_table({"id": pa.int32(), "v": pa.int64()})
WIDER = make_table({"id": pa.int32(), "v": pa.int64(), "w": pa.string()})
LANE, REBUILT = make_pg_lane("items"), make_pg_lane("items__replay")
OLD, NEW = [(1, 7), (2, 8), (3, 9)], [(1, 70), (3, 90)]
OLD_ROWS = "SELECT id, v FROM mirror.items ORDER BY 1"


@pytest.fixture
def build_sinks(postgres_dsn: str) -> Iterator[tuple[str, PostgresSink, LaneWrites]]:
    """The lane's own table, and a rebuilt table with another column and a tombstone."""
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, LaneWrites(ITEMS, LANE).write(*({"id": i, "v": v} for i, v in OLD)))
        feed = LaneWrites(WIDER, REBUILT)
        apply_write(sink, feed.write(*({"id": i, "v": 10 * v, "w": "w"} for i, v in OLD)))
        apply_write(sink, feed.write({"id": 2}, op="d"))
        yield postgres_dsn, sink, feed


def take_rebuilt_state(_: LaneState | None, rebuilt: LaneState) -> LaneState:
    return rebuilt


def list_relations(dsn: str) -> set[str]:
    names = "SELECT relnamespace::regnamespace || '.' || relname FROM pg_class WHERE relkind IN ('r', 'v', 'i')"
    places = "relnamespace IN ('mirror'::regnamespace, '_replicator'::regnamespace)"
    return {name for (name,) in fetch_rows(dsn, f"{names} AND {places}") if "positions" not in name and "schema" not in name}


def test_table_state_and_tombstones_are_swapped(build_sinks: tuple[str, PostgresSink, LaneWrites]) -> None:
    dsn, sink, feed = build_sinks
    state = sink.state(REBUILT)
    assert sink.swap(LANE, REBUILT, take_rebuilt_state) == state == sink.state(LANE) and sink.state(REBUILT) is None
    assert fetch_rows(dsn, OLD_ROWS) == NEW and not sink.list_artifacts(REBUILT)
    ((number,),) = fetch_rows(dsn, "SELECT id FROM _replicator.positions WHERE lane = 'pg.items'")
    assert list_relations(dsn) == {
        "mirror.items",
        "mirror.items_pkey",
        *(f"_replicator.tombstones_{number}{x}" for x in ("", "_pkey")),
    }
    assert fetch_rows(dsn, "SELECT obj_description('mirror.items'::regclass)") == [
        ("made by replicator for lane pg.items of pipeline tests",)
    ]
    later = replace(feed, lane=LANE)
    sink.prepare(LANE, later.plan)
    old = LaneWrites(WIDER, LANE)
    apply_write(sink, replace(old.write({"id": 2, "v": 0, "w": "back"}), out_of_band=True))
    assert fetch_rows(dsn, OLD_ROWS) == NEW, "the tombstone rejects the old row"
    apply_write(sink, later.write({"id": 4, "v": 4, "w": "x"}))
    assert fetch_rows(dsn, OLD_ROWS) == [*NEW, (4, 4)]
    assert "table" in {one.what for one in sink.list_artifacts(LANE) if not one.stays}


def test_swap_keeps_grants_indexes_comments_options_and_views(build_sinks: tuple[str, PostgresSink, LaneWrites]) -> None:
    dsn, sink, _ = build_sinks
    fetch_rows(dsn, "CREATE ROLE a_reader; CREATE ROLE another_reader")
    try:
        for statement in (
            "GRANT SELECT ON mirror.items TO a_reader WITH GRANT OPTION",
            "GRANT SELECT (v) ON mirror.items TO another_reader",
            "CREATE INDEX by_value ON mirror.items (v) WHERE v > 0",
            "COMMENT ON COLUMN mirror.items.v IS 'it''s a value'",
            "ALTER TABLE mirror.items SET (autovacuum_enabled = false)",
            "CREATE VIEW mirror.big WITH (security_barrier = true) AS SELECT * FROM mirror.items WHERE v > 8",
            "GRANT SELECT ON mirror.big TO a_reader",
            "CREATE VIEW mirror.bigger AS SELECT id FROM mirror.big",
        ):
            fetch_rows(dsn, statement)
        sink.swap(LANE, REBUILT, take_rebuilt_state)
        query = "SELECT has_table_privilege('a_reader', '{}', 'SELECT WITH GRANT OPTION')"
        assert fetch_rows(dsn, query.format("mirror.items")) == [(True,)]
        assert fetch_rows(dsn, "SELECT has_table_privilege('a_reader', 'mirror.big', 'SELECT')") == [(True,)]
        columns = "SELECT has_column_privilege('another_reader', 'mirror.items', '{}', 'SELECT')"
        assert fetch_rows(dsn, columns.format("v")) == [(True,)] and fetch_rows(dsn, columns.format("id")) == [(False,)]
        assert "WHERE (v > 0)" in fetch_rows(dsn, "SELECT pg_get_indexdef('mirror.by_value'::regclass)")[0][0]
        assert fetch_rows(dsn, "SELECT col_description('mirror.items'::regclass, 2)") == [("it's a value",)]
        ((options,),) = fetch_rows(dsn, "SELECT reloptions FROM pg_class WHERE oid = 'mirror.items'::regclass")
        assert {"autovacuum_enabled=false", "fillfactor=80"} <= set(options)
        assert fetch_rows(dsn, "SELECT reloptions FROM pg_class WHERE oid = 'mirror.big'::regclass") == [
            (["security_barrier=true"],)
        ]
        assert fetch_rows(dsn, "SELECT id FROM mirror.bigger ORDER BY 1") == [(1,), (3,)]
    finally:
        fetch_rows(dsn, "DROP OWNED BY a_reader, another_reader; DROP ROLE a_reader, another_reader")


NARROWER = make_table({"id": pa.int32(), "v": pa.string()})


@pytest.mark.parametrize(
    ("policy", "shape", "view"),
    [("scd2", RowTransforms(), "items_current"), ("scd1", RowTransforms(soft_deletes=True), "items_living")],
)
def test_own_view_reads_a_rebuild_with_other_columns(
    postgres_dsn: str, policy: str, shape: RowTransforms, view: str
) -> None:
    """The rebuild lacks one column, and another one has another type."""
    lane, rebuilt = make_pg_lane("items", policy), make_pg_lane("items__replay", policy)
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, LaneWrites(WIDER, lane, shape=shape).write({"id": 1, "v": 7, "w": "w"}, {"id": 2, "v": 8}))
        feed = LaneWrites(NARROWER, rebuilt, shape=shape)
        apply_write(sink, feed.write({"id": 1, "v": "a"}, {"id": 2, "v": "b"}))
        apply_write(sink, feed.write({"id": 2}, op="d"))
        fetch_rows(postgres_dsn, f"CREATE ROLE view_reader; GRANT SELECT ON mirror.{view} TO view_reader WITH GRANT OPTION")
        try:
            fetch_rows(postgres_dsn, f"CREATE VIEW mirror.mine AS SELECT v FROM mirror.{view}")
            with pytest.raises(Fatal, match=rf"view mirror\.{view} does not fit the rebuilt table .* Drop it, repeat"):
                sink.swap(lane, rebuilt, take_rebuilt_state)
            fetch_rows(postgres_dsn, "DROP VIEW mirror.mine")
            sink.swap(lane, rebuilt, take_rebuilt_state)
            rows = f"SELECT id, v FROM mirror.{view}"
            assert fetch_rows(postgres_dsn, rows) == [(1, "a")]
            right = f"SELECT has_table_privilege('view_reader', 'mirror.{view}', 'SELECT WITH GRANT OPTION')"
            assert fetch_rows(postgres_dsn, right) == [(True,)]
            later = replace(feed, lane=lane)
            apply_write(sink, later.write({"id": 3, "v": "c"}))
            assert fetch_rows(postgres_dsn, f"{rows} ORDER BY 1") == [(1, "a"), (3, "c")]
            assert [one.where for one in sink.list_artifacts(lane) if one.what == "view"] == [f"mirror.{view}"]
        finally:
            fetch_rows(postgres_dsn, "DROP OWNED BY view_reader; DROP ROLE view_reader")


def test_view_of_others_that_does_not_fit_the_rebuild_is_named(build_sinks: tuple[str, PostgresSink, LaneWrites]) -> None:
    dsn, sink, _ = build_sinks
    fetch_rows(dsn, "ALTER TABLE mirror.items ADD COLUMN mine text")
    fetch_rows(dsn, "CREATE VIEW mirror.seen AS SELECT mine FROM mirror.items")
    with pytest.raises(Fatal, match=r"view mirror\.seen does not fit the rebuilt table .* Drop it, repeat"):
        sink.swap(LANE, REBUILT, take_rebuilt_state)
    assert fetch_rows(dsn, OLD_ROWS) == OLD


NOT_KEPT = {
    "CREATE TABLE mirror.child (id int REFERENCES mirror.items (id))": "constraint child_id_fkey",
    "CREATE MATERIALIZED VIEW mirror.copy AS SELECT * FROM mirror.items": "materialized view mirror.copy",
    "ALTER TABLE mirror.items ENABLE ROW LEVEL SECURITY": "row security",
    "CREATE PUBLICATION told FOR TABLE mirror.items": "publication told",
    "CREATE TRIGGER now BEFORE UPDATE ON mirror.items EXECUTE FUNCTION suppress_redundant_updates_trigger()": "trigger now",
}


def test_swap_that_would_lose_objects_of_others_is_refused(build_sinks: tuple[str, PostgresSink, LaneWrites]) -> None:
    dsn, sink, _ = build_sinks
    for statement in NOT_KEPT:
        fetch_rows(dsn, statement)
    before = list_relations(dsn), sink.state(LANE), sink.state(REBUILT)
    with pytest.raises(Fatal) as refused:
        sink.swap(LANE, REBUILT, take_rebuilt_state)
    assert all(name in refused.value.sentence for name in NOT_KEPT.values()), refused.value.sentence
    assert (list_relations(dsn), sink.state(LANE), sink.state(REBUILT)) == before and fetch_rows(dsn, OLD_ROWS) == OLD
    fetch_rows(dsn, "DROP PUBLICATION told")


def test_swap_of_a_foreign_lane_or_table_is_refused(build_sinks: tuple[str, PostgresSink, LaneWrites]) -> None:
    dsn, sink, _ = build_sinks
    with open_sink(dsn) as second, pytest.raises(Fenced):
        second.swap(LANE, REBUILT, take_rebuilt_state)
    fetch_rows(dsn, "COMMENT ON TABLE mirror.items IS NULL")
    with pytest.raises(Fatal, match="existed before"):
        sink.swap(LANE, REBUILT, take_rebuilt_state)
    assert fetch_rows(dsn, OLD_ROWS) == OLD


def test_killed_swap_changes_nothing_and_can_be_repeated(
    build_sinks: tuple[str, PostgresSink, LaneWrites], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is killed at each statement of the swap."""
    dsn, sink, _ = build_sinks
    states = sink.state(LANE), sink.state(REBUILT)
    sink.close()
    done = psycopg.Cursor.execute
    for after in range(100):
        statements = iter(range(1000))

        def execute(cursor: Any, query: Any, *args: Any, left: Any = statements, at: int = after, **options: Any) -> Any:
            words = (
                query if isinstance(query, str) else query.decode() if isinstance(query, bytes) else query.as_string(None)
            )
            if not words.startswith(("SELECT", "SET")) and next(left) == at:
                cursor.connection.close()
                raise KeyboardInterrupt
            return done(cursor, query, *args, **options)

        with open_sink(dsn) as killed, monkeypatch.context() as patched:
            patched.setattr(psycopg.Cursor, "execute", execute)
            try:
                killed.swap(LANE, REBUILT, take_rebuilt_state)
                break
            except KeyboardInterrupt:
                pass
        assert fetch_rows(dsn, OLD_ROWS) == OLD
        with open_sink(dsn) as again:
            assert (again.state(LANE), again.state(REBUILT)) == states
    assert after > 15 and fetch_rows(dsn, OLD_ROWS) == NEW


def test_reader_sees_either_the_old_or_the_new_rows(
    build_sinks: tuple[str, PostgresSink, LaneWrites], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reader queries all the time. Another one, with an older snapshot, makes the swap fail after a wait."""
    dsn, sink, feed = build_sinks
    found, stop = set(), threading.Event()

    def read() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.is_set():
                found.add(tuple(connection.execute(OLD_ROWS).fetchall()))

    monkeypatch.setattr(lane_objects, "READERS_SECONDS", 0.3)
    with psycopg.connect(dsn) as earlier:
        earlier.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        earlier.execute("SELECT 1")
        apply_write(sink, feed.write({"id": 1, "v": 70, "w": "once more"}))
        with pytest.raises(Fatal, match="neither the old rows nor the new"):
            sink.swap(LANE, REBUILT, take_rebuilt_state)
        assert earlier.execute(OLD_ROWS).fetchall() == OLD
    monkeypatch.undo()
    reader = threading.Thread(target=read)
    reader.start()
    try:
        sink.swap(LANE, REBUILT, take_rebuilt_state)
    finally:
        stop.set()
        reader.join()
    assert found <= {tuple(OLD), tuple(NEW)}
    assert fetch_rows(dsn, OLD_ROWS) == NEW
