"""scd2 in PostgreSQL: the view of open versions, types without equality, existing tables."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from support.pg_case import CollectedRejects, LaneWrites, apply_write, fetch_rows, make_pg_lane, make_table, open_sink

from adapters.sinks.postgres import scd2
from adapters.sinks.postgres.scd2 import split_by_key
from replicator.domain.position import Position
from replicator.domain.schema_evolution import SchemaVersion, TargetReshape

pytestmark = pytest.mark.postgres

VERSIONS = "SELECT id, v::text, _cdc_seq_1, _cdc_end_seq_1 FROM mirror.items ORDER BY 1, 3"


def feed() -> LaneWrites:
    return LaneWrites(make_table({"id": pa.int64(), "v": pa.string()}), make_pg_lane(policy="scd2"))


def test_view_of_open_versions_follows_column_changes(postgres_dsn):
    stream = feed()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "v": "a"}, {"id": 2, "v": "b"}))
        apply_write(sink, stream.write({"id": 1, "v": "c"}, {"id": 2, "_op": "d"}))
        assert fetch_rows(postgres_dsn, "SELECT id, v FROM mirror.items_current") == [(1, "c")]
        stream.table = make_table({"id": pa.int64(), "v": pa.string(), "w": pa.int32()})
        apply_write(sink, stream.write({"id": 3, "v": "d", "w": 5}))
    assert fetch_rows(postgres_dsn, "SELECT id, v, w FROM mirror.items_current ORDER BY 1") == [(1, "c", None), (3, "d", 5)]
    assert fetch_rows(postgres_dsn, VERSIONS) == [(1, "a", 1, 3), (1, "c", 3, None), (2, "b", 2, 4), (3, "d", 5, None)]


def test_truncate_ends_versions_at_its_time(postgres_dsn):
    stream = feed()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "v": "a"}))
        apply_write(sink, stream.write({"_ts": 1_700_000_060_000_000}, op="t"))
    ended = fetch_rows(postgres_dsn, 'SELECT "__END_AT", _cdc_end_seq_1 FROM mirror.items')
    assert ended == [(datetime(2023, 11, 14, 22, 14, 20, tzinfo=UTC), 2)]


def test_readded_column_is_emptied_in_open_versions_only(postgres_dsn):
    """A version that ended at a change without a time has no `__END_AT`, but is not open."""
    stream = feed()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 2, "_op": "d"}))
        fetch_rows(postgres_dsn, 'UPDATE mirror.items SET "__END_AT" = NULL')
        version = SchemaVersion(
            2, stream.table, (), Position(), datetime(2026, 3, 1, tzinfo=UTC), reshaping=TargetReshape(emptied=("v",))
        )
        sink.catalogue.prepare_table("mirror", "items", stream.plan, versions=[version])
    assert fetch_rows(postgres_dsn, VERSIONS) == [(1, None, 1, None), (2, "b", 2, 3)]


def make_random_changes(rng: Random) -> list[dict[str, Any]]:
    """Changes of random keys: updates, deletes and updates without a value."""
    kinds = [{"v": "a"}, {"v": "b"}, {"_op": "d"}, {"_unsent": ["v"], "w": 1}]
    return [{"id": int(rng.paretovariate(0.5)) % 30, "w": rng.randrange(2), **rng.choice(kinds)} for _ in range(200)]


def test_split_batch_writes_the_same_versions_as_a_whole_one(postgres_dsn, monkeypatch):
    rng, sizes = Random(3), []
    lanes = [make_pg_lane(into, "scd2") for into in ("items", "parted")]
    table = make_table({"id": pa.int64(), "v": pa.string(), "w": pa.int64()})
    streams, rejects = [LaneWrites(table, lane) for lane in lanes], [CollectedRejects(), CollectedRejects()]

    def by_key(rows, keys, size):
        sizes.append(len(parts := split_by_key(rows, keys, size)))
        return parts

    monkeypatch.setattr(scd2, "split_by_key", by_key)
    counts = []
    with open_sink(postgres_dsn) as sink:
        for _ in range(5):
            rows = make_random_changes(rng)
            for stream, refused, size in zip(streams, rejects, (1_000, 7), strict=True):
                monkeypatch.setattr(scd2, "PART", size)
                sink.prepare(stream.lane, stream.plan)
                counts.append(sink.apply([stream.write(*rows)], refused)[stream.lane.id].counts)
    assert counts[::2] == counts[1::2] and sizes[1] > 5 and set(sizes[::2]) == {1}
    assert sorted(row[1:] for row in rejects[0]) == sorted(row[1:] for row in rejects[1]) and rejects[0]
    columns = "id, v, w, _cdc_seq_1, _cdc_end_seq_1, _cdc_last_seq_1, _event_id, _cdc_unsent"
    whole, parted = (fetch_rows(postgres_dsn, f"SELECT {columns} FROM mirror.{lane.into} ORDER BY 1, 4") for lane in lanes)
    assert whole == parted and len(whole) > 200


def test_existing_relation_with_the_name_of_the_view_stays(postgres_dsn):
    fetch_rows(postgres_dsn, "CREATE SCHEMA mirror; CREATE TABLE mirror.items_current (mine int)")
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, feed().write({"id": 1, "v": "a"}))
    assert fetch_rows(postgres_dsn, "SELECT * FROM mirror.items_current") == []
    assert fetch_rows(postgres_dsn, VERSIONS) == [(1, "a", 1, None)]


def test_view_with_renamed_columns_does_not_stop_the_lane(postgres_dsn):
    stream = feed()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "v": "a"}))
    fetch_rows(postgres_dsn, "ALTER TABLE mirror.items ADD COLUMN note text")
    fetch_rows(postgres_dsn, 'ALTER VIEW mirror.items_current RENAME COLUMN v TO "V"')
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "v": "b"}))
    assert fetch_rows(postgres_dsn, VERSIONS) == [(1, "a", 1, 2), (1, "b", 2, None)]


@pytest.mark.parametrize("kind", ["json", "xml", "point"])
def test_types_without_equality_are_compared_as_text(postgres_dsn, kind):
    value = {"json": '{"a": 1}', "xml": "<a/>", "point": "(1,2)"}[kind]
    other = {"json": '{"a": 2}', "xml": "<b/>", "point": "(2,1)"}[kind]
    stream = feed()
    with open_sink(postgres_dsn) as sink:
        sink.prepare(stream.lane, stream.plan)
        fetch_rows(postgres_dsn, "DROP VIEW mirror.items_current")
        fetch_rows(postgres_dsn, f"ALTER TABLE mirror.items ALTER COLUMN v TYPE {kind} USING NULL")
        fetch_rows(postgres_dsn, f"ALTER TABLE _replicator.tombstones_1 ALTER COLUMN v TYPE {kind} USING NULL")
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "v": value}, {"id": 1, "v": value}, {"id": 1, "v": other}))
    assert [(start, end) for _, _, start, end in fetch_rows(postgres_dsn, VERSIONS)] == [(1, 3), (3, None)]


def test_value_that_the_table_refuses_is_rejected(postgres_dsn):
    stream, rejects = feed(), CollectedRejects()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "v": "a"}))
    fetch_rows(postgres_dsn, "DROP VIEW mirror.items_current; ALTER TABLE mirror.items ALTER COLUMN v TYPE varchar(3)")
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "v": "long text"}, {"id": 1, "v": "b"}), rejects)
    assert [(lane, key) for lane, key, _ in rejects] == [("pg.items", 1)]
    assert fetch_rows(postgres_dsn, VERSIONS) == [(1, "a", 1, 3), (1, "b", 3, None)]


def test_unchanged_value_without_a_version_is_rejected(postgres_dsn):
    stream, rejects = feed(), CollectedRejects()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "_unsent": ["v"]}), rejects)
    assert [(key, "no value was sent for v" in sentence) for _, key, sentence in rejects] == [(1, True)]
    assert fetch_rows(postgres_dsn, VERSIONS) == []


def test_drop_deletes_the_view_of_open_versions(postgres_dsn):
    stream = feed()
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "v": "a"}))
        assert ("view", "mirror.items_current") in [(b.what, b.where) for b in sink.list_artifacts(stream.lane)]
        sink.drop(stream.lane)
    assert fetch_rows(postgres_dsn, "SELECT to_regclass('mirror.items'), to_regclass('mirror.items_current')") == [
        (None, None)
    ]


CITEXT = "SELECT 1 FROM pg_available_extensions WHERE name = 'citext'"
ICU = "SELECT 1 FROM pg_collation WHERE collprovider = 'i'"
NOCASE = "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"


@pytest.mark.parametrize(
    ("available", "prepare", "kind"),
    [(CITEXT, "CREATE EXTENSION citext", "public.citext"), (ICU, NOCASE, "text COLLATE public.nocase")],
    ids=["citext", "collation"],
)
def test_text_that_differs_in_case_only_begins_a_version(postgres_dsn, available, prepare, kind):
    """The database compares both texts as equal, by the type or by the column's collation."""
    if not fetch_rows(postgres_dsn, available):
        pytest.skip("this PostgreSQL was built without it")
    fetch_rows(postgres_dsn, prepare)
    stream = feed()
    with open_sink(postgres_dsn) as sink:
        sink.prepare(stream.lane, stream.plan)
        fetch_rows(postgres_dsn, "DROP VIEW mirror.items_current")
        fetch_rows(postgres_dsn, f"ALTER TABLE mirror.items ALTER COLUMN v TYPE {kind}")
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, "v": "a"}))
        apply_write(sink, stream.write({"id": 1, "v": "A"}))
    assert fetch_rows(postgres_dsn, VERSIONS) == [(1, "a", 1, 2), (1, "A", 2, None)]


KNOWN_IN_SQL = (
    "_kind",
    "_there",
    "_lost",
    "_opens",
    "_version",
    "_image",
    "_g0",
    "_last_1",
    "_k_there",
    "_last_place",
    "_life",
)


@pytest.mark.parametrize("other", ["", "io.debezium.data.Uuid"], ids=["here", "in the server"])
def test_columns_may_have_names_of_internal_columns(postgres_dsn, other):
    columns = {"id": pa.int64(), "other": pa.string(), **dict.fromkeys(KNOWN_IN_SQL, pa.string())}
    stream = LaneWrites(make_table(columns, other=other), make_pg_lane(policy="scd2"))
    values = dict.fromkeys(KNOWN_IN_SQL, "a")
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write({"id": 1, **values}))
        apply_write(
            sink, stream.write({"id": 1, **values, "_lost": None, "_unsent": ["_lost"], "_kind": "b"}, {"id": 1, "_op": "d"})
        )
    found = fetch_rows(postgres_dsn, 'SELECT "_lost", "_kind", _cdc_seq_1, _cdc_end_seq_1 FROM mirror.items ORDER BY 3')
    assert found == [("a", "a", 1, 2), ("a", "b", 2, 3)]


US = pa.timestamp("us", "UTC")
INFINITE, BEFORE_CHRIST = 9_223_372_036_825_200_000, -100_000_000_000_000_000
EDGES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "truth": (pa.bool_(), [True, False, None]),
    "small": (pa.int16(), [-32768, 32767, None]),
    "large": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "single": (pa.float32(), [float("nan"), float("-inf"), 1.17549435e-38]),
    "double": (pa.float64(), [float("nan"), float("inf"), 0.1 + 0.2]),
    "words": (pa.string(), ["", "\\.", 'a,"b"\r\n\u2028é']),
    "exact": (pa.decimal128(38, 10), [Decimal("-1234567890123456789012345678.0123456789"), Decimal(0), None]),
    "wide": (pa.decimal256(60, 3), [Decimal("9" * 57 + ".125"), None, Decimal(1)]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None]),
    "clock": (pa.time64("us"), [time(0), time(23, 59, 59, 999_999), None]),
    "moment": (US, [INFINITE, BEFORE_CHRIST, None]),
    "local": (pa.timestamp("us"), [-INFINITE - 7_200_000, 253_402_300_799_999_999, None]),
}


def test_ended_version_keeps_its_values(postgres_dsn):
    """The version is read, compared with the change, and written again with its end."""
    stream = LaneWrites(
        make_table({"id": pa.int64(), **{n: kind for n, (kind, _) in EDGES.items()}}), make_pg_lane(policy="scd2")
    )
    rows = [{"id": i, **{n: values[i] for n, (_, values) in EDGES.items()}} for i in range(3)]
    query = f"SELECT {', '.join(f'{n}::text' for n in EDGES)} FROM mirror.items ORDER BY id"
    with open_sink(postgres_dsn) as sink:
        apply_write(sink, stream.write(*rows))
        begun = fetch_rows(postgres_dsn, query)
        apply_write(sink, stream.write(*rows))
        apply_write(sink, stream.write(*({"id": i, "_op": "d"} for i in range(3))))
    assert fetch_rows(postgres_dsn, query) == begun
    assert fetch_rows(postgres_dsn, VERSIONS.replace("v::text, ", "")) == [(0, 1, 7), (1, 2, 8), (2, 3, 9)]
    assert begun[0][-2] == "infinity" and begun[1][-2].endswith(" BC")
