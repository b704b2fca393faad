"""Snapshots that are queried from a database: contents, timing, and storing each snapshot once."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from support.exported_records import Row, make_random_snapshots

from adapters.delta.folders import LocalLaneLock
from adapters.postgres import table_reader
from adapters.postgres.table_reader import SnapshotQuery, table_query
from adapters.sources.snapshot_diff.source import QuerySnapshots, SnapshotJournal, SnapshotsCheck, SnapshotsSource
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Fatal, Retryable
from replicator.domain.position import Position

pytestmark = pytest.mark.postgres
A, B = (1, "a", "x", 1.5), (2, "a", None, 0.0)
NAMES = ("id", "Part", "name", "price")
CREATE_ITEMS = 'CREATE TABLE items (id bigint, "Part" text, name text, price float8)'


class Shop:
    """A database with one table."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.run(CREATE_ITEMS)

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def put(self, rows: list[Row]) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.execute("DELETE FROM items")
            with connection.cursor() as cursor:
                cursor.executemany("INSERT INTO items VALUES (%s, %s, %s, %s)", rows)


@pytest.fixture
def shop(postgres_dsn):
    return Shop(postgres_dsn)


def source(shop: Shop, folder: Path, **options: Any) -> SnapshotsSource:
    given = {
        "dsn": shop.dsn,
        "table": "items",
        "state": str(folder / "state"),
        "keys": ("id", "Part"),
        "every": "1 millisecond",
    }
    return SnapshotsSource({**given, **options})


def read(one: SnapshotsSource, start: Position | None = None) -> tuple[list[tuple], Position]:
    """Takes one snapshot. Returns the changes that are left (operation, version and row) and the end position."""
    rows, at = [], dict(start or {})

    def take(batch: Any) -> None:
        rows.extend(read_changes(batch))
        at.update(batch.span.end)

    one.run(start or Position(), take, threading.Event(), once=True)
    assert [row[1] for row in rows] == sorted(row[1] for row in rows)
    return sorted(rows, key=lambda row: (row[1], row[0], str(row))), Position(at)


def read_changes(batch: Any) -> list[tuple]:
    found = [json.loads(value)["payload"] for value in batch.frame["value"].to_pylist()]
    return [(row["_change"], row["_snapshot"], *(row.get(name) for name in NAMES)) for row in found]


def without_versions(found: list[tuple]) -> list[tuple]:
    return [(row[0], *row[2:]) for row in found]


def test_one_run_takes_one_snapshot(shop, tmp_path):
    shop.put([A, B])
    before = time.time_ns() // 1000
    found, at = read(source(shop, tmp_path))
    assert without_versions(found) == [("c", *A), ("c", *B)]
    assert before <= found[0][1] <= time.time_ns() // 1000, "versions are times in microseconds"
    assert {place.topic for place in at} == {"items"}
    shop.put([A])
    one = source(shop, tmp_path)
    assert without_versions(read(one, at)[0]) == [("d", *B)]
    shop.put([])
    assert read(one, at)[0] == read(source(shop, tmp_path, allow_empty=True), at)[0][:1], "one run takes one snapshot"


def test_equal_snapshot_writes_nothing(shop, tmp_path):
    shop.put([A, B])
    _, at = read(source(shop, tmp_path))

    def list_written_files() -> dict[str, int]:
        files = [file for file in (tmp_path / "state").rglob("*") if file.is_file() and file.name != "lock"]
        return {str(file): file.stat().st_mtime_ns for file in files}

    before = list_written_files()
    shop.put([B, A])
    assert read(source(shop, tmp_path), at) == ([], at)
    assert list_written_files() == before


def test_running_source_takes_further_snapshots(shop, tmp_path):
    shop.put([A])
    stop, rows = threading.Event(), []

    def take(batch: Any) -> None:
        rows.extend(read_changes(batch))
        if len(rows) == 1:
            shop.put([A, B])
        if len(rows) == 2:
            stop.set()

    threading.Timer(30, stop.set).start()
    source(shop, tmp_path).run(Position(), take, stop, once=False)
    assert without_versions(rows) == [("c", *A), ("c", *B)]


def test_source_does_not_query_before_its_interval_ends(shop, tmp_path, monkeypatch):
    shop.put([A])
    queries, stop = [], threading.Event()
    original = SnapshotQuery.read_rows
    monkeypatch.setattr(SnapshotQuery, "read_rows", lambda self: queries.append(1) or original(self))
    threading.Timer(4, stop.set).start()
    source(shop, tmp_path, every="1 minute").run(Position(), lambda batch: None, stop, once=False)
    assert len(queries) == 1


SLOW = 'SELECT id, "Part", name, price FROM items, pg_sleep({})'


def test_slow_query_delays_neither_batches_nor_the_stop(shop, tmp_path, monkeypatch):
    """Batches continue while a query runs. A stop cancels the query."""
    shop.put([A])
    read(source(shop, tmp_path))
    stop, turns = threading.Event(), []

    def take(batch: Any) -> None:
        turns.append(time.monotonic())
        if len(turns) == 4:
            stop.set()

    began = time.monotonic()
    source(shop, tmp_path, query=SLOW.format(60)).run(Position(), take, stop, once=False)
    assert len(turns) == 4 and time.monotonic() - began < 20
    for _ in range(100):
        with psycopg.connect(shop.dsn) as connection:
            [left] = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'replicator snapshots%' "
                "AND datname = current_database()"
            ).fetchone()
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError("the query still runs")


def test_start_is_retryable_until_the_first_snapshot_is_read(shop, tmp_path, monkeypatch):
    monkeypatch.setattr("adapters.sources.journal.FIRST_WITHIN", 0.1)
    shop.put([A])
    one = source(shop, tmp_path, query=SLOW.format(1))
    sentences = []
    for _ in range(100):
        try:
            one.start()
            break
        except Retryable as waiting:
            sentences.append(waiting.sentence)
    assert len(sentences) > 2 and set(sentences) == {"The first snapshot of items is being read."}
    assert without_versions(read(one)[0]) == [("c", *A)]


def test_empty_result_is_data_loss_unless_allowed(shop, tmp_path):
    shop.put([A])
    _, at = read(source(shop, tmp_path))
    shop.put([])
    with pytest.raises(DataLoss, match=r"items as read at 20.* has no rows, so it would delete every row") as caught:
        read(source(shop, tmp_path), at)
    assert "allow_empty: true" in caught.value.next_step and "Correct the query" in caught.value.next_step
    assert without_versions(read(source(shop, tmp_path, allow_empty=True), at)[0]) == [("d", *A)]


@pytest.mark.parametrize(
    ("query", "error", "sentence"),
    [
        ("SELECT nothing FROM items", ConfigProblem, 'column "nothing" does not exist (SQLSTATE 42703)'),
        ("SELEC 1", ConfigProblem, "syntax error"),
        ("SELECT 1; DROP TABLE items", ConfigProblem, "syntax error"),
        ("SELECT id, id FROM items", ConfigProblem, "has two columns with the name 'id'"),
        ("SELECT", ConfigProblem, "gives no columns"),
        ("SELECT nextval('numbers') AS id", ConfigProblem, "read-only transaction"),
        ("SELECT id / 0 AS id FROM items", Fatal, "division by zero"),
        ("SELECT 'secret'::text::int AS id", Fatal, "invalid text representation"),
        ("SELECT id, 'NaN'::numeric(5, 2) AS cost FROM items", Fatal, "column 'cost' has a value that decimal128(5, 2)"),
        ("SELECT id, '{{1,2},{3,4}}'::int[] AS many FROM items", Fatal, "column 'many' has a value that list"),
        ("SELECT id, name AS _change FROM items", ConfigProblem, "has a column '_change'"),
        ('SELECT id, name AS "_op" FROM items', ConfigProblem, "has a column '_op'"),
        ('SELECT id, name, name AS "Name" FROM items', ConfigProblem, "has columns 'name' and 'Name', which differ in case"),
        ("SELECT id, date 'infinity' AS day FROM items", DataLoss, "Column 'day' of items as read at"),
        ("SELECT id, date '-infinity' AS day FROM items", DataLoss, "contains infinity, or a day"),
        ("SELECT name FROM items", ConfigProblem, "has no column 'id', which `keys` names"),
        ("SELECT 1 AS id, 'a' AS x UNION ALL SELECT 1, 'b'", DataLoss, "has 1 row more than keys (id)"),
        ("SELECT NULL::int AS id", DataLoss, "has a NULL in key column 'id' of 1 row"),
    ],
)
def test_unusable_query_or_result_is_refused(shop, tmp_path, query, error, sentence):
    shop.run("CREATE SEQUENCE numbers")
    shop.put([A])
    with pytest.raises(error, match=re.escape(sentence)) as caught:
        read(source(shop, tmp_path, query=query, keys=("id",)))
    assert caught.value.next_step and "secret" not in str(caught.value)
    shop.put([A, B])


def test_columns_may_only_be_added(shop, tmp_path):
    shop.put([A, B])
    _, at = read(source(shop, tmp_path))
    shop.run("ALTER TABLE items ADD more int")
    assert read(source(shop, tmp_path), at)[0] == []
    shop.run("UPDATE items SET more = 7 WHERE id = 2")
    found, at = read(source(shop, tmp_path), at)
    assert without_versions(found) == [("u", *B)]
    shop.run("ALTER TABLE items ALTER more TYPE text")
    with pytest.raises(DataLoss, match=r"Column 'more' is string in items as read at .*, and was int32 before"):
        read(source(shop, tmp_path), at)
    shop.run("ALTER TABLE items DROP more")
    with pytest.raises(DataLoss, match="lacks the column 'more'"):
        read(source(shop, tmp_path), at)


def test_unreachable_database_is_retryable(shop, tmp_path):
    shop.put([A])
    _, at = read(source(shop, tmp_path))
    away = source(shop, tmp_path, dsn="postgresql://somebody:hunter2@127.0.0.1:1/shop")
    for _ in range(2):
        with pytest.raises(Retryable, match="not reachable while reading items") as caught:
            read(away, at)
        assert "hunter2" not in str(caught.value) and "hunter2" not in repr(vars(away))
    shop.put([A, B])
    away._poller._journal._supply._query._session.dsn = shop.dsn
    assert without_versions(read(away, at)[0]) == [("c", *B)], "failed attempts are not snapshots"


def test_changed_keys_are_data_loss(shop, tmp_path):
    shop.put([A])
    _, at = read(source(shop, tmp_path))
    with pytest.raises(DataLoss, match=r"compared by the keys \(Part, id\), but `keys` is now \(id\)"):
        read(source(shop, tmp_path, keys=("id",)), at)


def test_role_without_rights_is_refused(shop, tmp_path):
    shop.run("DROP ROLE IF EXISTS stranger", "CREATE ROLE stranger LOGIN")
    shop.put([A])
    theirs = source(shop, tmp_path, dsn=shop.dsn.replace("user=tester", "user=stranger"))
    with pytest.raises(EnvironmentProblem, match="permission denied for table items") as refused:
        read(theirs)
    assert refused.value.next_step.startswith("Grant this role the right that the sentence names")
    shop.run("GRANT SELECT ON items TO stranger")
    assert without_versions(read(theirs)[0]) == [("c", *A)]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "kill", [(m, after) for m in ("_store_rows", "commit", "_write_versions") for after in (False, True)]
)
def test_kill_at_any_step_duplicates_nothing(shop, tmp_path, monkeypatch, seed, kill):
    """Changes lead from each state to the next in ascending versions, after any number of kills."""
    step, after = kill
    original = getattr(SnapshotJournal, step)
    calls = iter(range(1000))

    def raise_killed(self: SnapshotJournal, *given: Any) -> None:
        if after:
            original(self, *given)
        if next(calls) % 3:
            raise Killed
        if not after:
            original(self, *given)

    monkeypatch.setattr(SnapshotJournal, step, raise_killed)
    state: dict[tuple, tuple] = {}
    at, last = Position(), 0
    for rows in make_random_snapshots(random.Random(seed), 5):
        shop.put(rows)
        for _ in range(12):
            try:
                found, at = read(source(shop, tmp_path, allow_empty=True), at)
                break
            except Killed:
                continue
        else:
            raise AssertionError("every attempt was killed")
        for change, version, *row in found:
            assert version >= last
            assert (tuple(row[:2]) in state) == (change != "c"), "a row is created once, and updated or deleted afterwards"
            assert change == "d" or state.get(tuple(row[:2])) != tuple(row)
            state.pop(tuple(row[:2]), None)
            if change != "d":
                state[tuple(row[:2])] = tuple(float(value) if value == "Infinity" else value for value in row)
            last = version
        assert sorted(state.values(), key=repr) == sorted(rows, key=repr)
    assert len(list((tmp_path / "state").glob("*.parquet"))) == 1
    assert len(json.loads((tmp_path / "state" / "taken.json").read_text())["taken"]) == 1


def test_versions_increase_although_the_clock_does_not(shop):
    shop.put([A])
    future = (time.time_ns() // 1000) + 10**12
    found = QuerySnapshots(SnapshotQuery(shop.dsn, table_query("items"), "reading items"), "items").read_next(
        {5: None, future: None}
    )
    assert found.version == future + 1


def test_snapshots_wait_while_another_process_has_the_lock(shop, tmp_path):
    shop.put([A])
    _, at = read(source(shop, tmp_path))
    shop.put([A, B])
    lock = LocalLaneLock(tmp_path / "state" / "lock", "items")
    assert read(source(shop, tmp_path), at)[0] == []
    lock.release()
    assert len(read(source(shop, tmp_path), at)[0]) == 1


def test_query_is_read_only_in_one_database_snapshot(shop):
    names = ("transaction_isolation", "transaction_read_only", "enable_hashjoin")
    text = "SELECT " + ", ".join(f"current_setting('{name}') AS {name}" for name in names) + " -- as it is;"
    _, found = SnapshotQuery(shop.dsn, text, "looking").read_rows()
    assert found.to_pylist() == [dict(zip(names, ("repeatable read", "on", "on"), strict=True))]


def test_rows_are_read_in_batches(shop, monkeypatch):
    monkeypatch.setattr(table_reader, "BATCH", 3)
    _, found = SnapshotQuery(shop.dsn, "SELECT n FROM generate_series(1, 8) AS g(n);", "counting").read_rows()
    assert found["n"].to_pylist() == list(range(1, 9))
    assert [len(chunk) for chunk in found["n"].chunks] == [3, 3, 2]


TYPES = [
    ("true", pa.bool_(), True),
    ("1::smallint", pa.int16(), 1),
    ("1", pa.int32(), 1),
    ("9007199254740993", pa.int64(), 9007199254740993),
    ("'nan'::float4", pa.float32(), None),
    ("1.5::float8", pa.float64(), 1.5),
    ("1.10::numeric(5, 2)", pa.decimal128(5, 2), Decimal("1.10")),
    ("0.00123::numeric(3, 5)", pa.decimal128(3, 5), Decimal("0.00123")),
    ("1.10::numeric", pa.string(), "1.10"),
    ("12.5::numeric(60, 1)", pa.decimal256(60, 1), Decimal("12.5")),
    ("'100%s'", pa.string(), "100%s"),
    ("'a'::char(3)", pa.string(), "a  "),
    ("'é'::varchar(9)", pa.string(), "é"),
    ("'a'::name", pa.string(), "a"),
    (r"'\x00ff'::bytea", pa.binary(), b"\x00\xff"),
    ("date '0001-02-03'", pa.date32(), date(1, 2, 3)),
    ("time '12:34:56.789'", pa.time64("us"), None),
    ("timetz '12:34:56+02'", pa.string(), "12:34:56+02"),
    ("timestamp '2024-01-05 10:11:12.123456'", pa.timestamp("us"), datetime(2024, 1, 5, 10, 11, 12, 123456)),
    (
        "timestamptz '2024-01-05 10:11:12+02'",
        pa.timestamp("us", "UTC"),
        datetime(2024, 1, 5, 8, 11, 12, tzinfo=UTC),
    ),
    ("'3 days'::interval", pa.string(), "P3D"),
    ("'7f1c9e52-0000-4000-8000-000000000001'::uuid", pa.string(), "7f1c9e52-0000-4000-8000-000000000001"),
    ("""'{"a": 1}'::jsonb""", pa.string(), '{"a": 1}'),
    ("ARRAY[1, NULL, 3]", pa.list_(pa.int32()), [1, None, 3]),
    ("ARRAY['a', NULL]", pa.list_(pa.string()), ["a", None]),
    ("ARRAY[1.1, 2.20]::numeric(5, 2)[]", pa.list_(pa.string()), ["1.10", "2.20"]),
    ("ARRAY['happy']::mood[]", pa.list_(pa.string()), ["happy"]),
    ("'happy'::mood", pa.string(), "happy"),
    ("5::small", pa.int16(), 5),
    ("NULL", pa.string(), None),
]


def test_every_type_has_an_arrow_type_and_value(shop):
    shop.run("CREATE TYPE mood AS ENUM ('happy')", "CREATE DOMAIN small AS smallint")
    text = "SELECT " + ", ".join(f'{sql} AS "c{n}"' for n, (sql, _, _) in enumerate(TYPES))
    query = SnapshotQuery(shop.dsn, text, "reading types")
    _, found = query.read_rows()
    assert [field.type for field in found.schema] == [kind for _, kind, _ in TYPES] == [f.type for f in query.read_columns()]
    for (sql, _, value), column in zip(TYPES, found.columns, strict=True):
        assert value is None or column.to_pylist() == [value], sql


def test_snapshot_has_the_same_types_as_a_read_of_a_target(shop):
    """The catalogue and the protocol give the same types."""
    columns = [
        "a numeric(9, 3)",
        "b numeric",
        "c timestamptz",
        "d time(3)",
        "e int[]",
        "f varchar(4)[]",
        "g jsonb",
        "h char(2)",
    ]
    shop.run(f'CREATE TABLE "Odd ""one" ({", ".join(columns)})')
    shop.run("""INSERT INTO "Odd ""one" VALUES (1, 2.50, 'infinity', '24:00', '{1}', '{x,y}', '{"a": 1}', 'z')""")
    reader = table_reader.TableReader(shop.dsn, "public", 60)
    _, found = SnapshotQuery(shop.dsn, table_query('public.Odd "one'), "reading").read_rows()
    assert found.equals(reader.read('Odd "one')) and found.num_rows == 1


def test_time_24_00_is_preserved(shop, tmp_path):
    shop.run("CREATE TABLE hours (id int, until time)", "INSERT INTO hours VALUES (1, '24:00'), (2, '00:00')")
    rows = []
    one = source(shop, tmp_path, table="hours", keys=("id",))
    one.run(Position(), lambda batch: rows.extend(batch.frame["value"].to_pylist()), threading.Event(), once=True)
    assert sorted(json.loads(row)["payload"]["until"] for row in rows) == ["00:00:00.000000", "24:00:00.000000"]


def test_doctor_checks_that_the_query_works(shop, tmp_path):
    def diagnose(**options: Any) -> tuple[str, str]:
        given = {"dsn": shop.dsn, "table": "items", "every": "5 minutes", **options}
        (one,) = SnapshotsCheck("source shop", given).diagnose()
        return one.severity, one.sentence

    assert diagnose() == ("ok", "The database can be queried for items: 4 columns.")
    assert diagnose(table="public.items")[0] == "ok"
    assert diagnose(query="SELECT 1 AS id") == ("ok", "The database can be queried for items: 1 column.")
    assert diagnose(table="nowhere")[0] == "error"
    assert diagnose(dsn="postgresql://x:hunter2@127.0.0.1:1/shop")[0] == "error"
    assert "hunter2" not in diagnose(dsn="postgresql://x:hunter2@127.0.0.1:1/shop")[1]


@pytest.mark.parametrize(
    "options", [{"table": None}, {"path": "x"}, {"dsn": "no dsn"}, {"keys": ()}, {"every": "0 seconds"}, {"state": ""}]
)
def test_invalid_options_are_refused(shop, tmp_path, options):
    with pytest.raises(ConfigProblem):
        source(shop, tmp_path, **options)
