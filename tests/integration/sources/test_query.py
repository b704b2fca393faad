"""The source `query`: the same rows from every kind of server, each row once, and no row lost."""

from __future__ import annotations

import random
import re
import shutil
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.full_disk import full_disk
from support.queried_database import SALES, STAMP, QueriedDatabase, list_payloads, make_query_source, read_once

from adapters.sources.query.database import QueryConnection
from adapters.sources.query.source import QueryJournal
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Fatal, Retryable
from replicator.domain.position import Position

MARIADB = pytest.param("mariadb", marks=pytest.mark.slow)
EVERY = [pytest.param("sqlite"), pytest.param("postgresql", marks=pytest.mark.postgres), MARIADB]
MOST = [*EVERY[:2], pytest.param("mariadb", marks=[pytest.mark.slow, pytest.mark.long])]
"""MariaDB takes seconds for what others take tenths for: what its own types, clock, transactions and errors decide is tried
by default, and all else in a long run."""
on_every_database = pytest.mark.parametrize("queried_database", EVERY, indirect=True)
LONG = pytest.mark.long


OF_QUERY = {"id": "int64", "modified": "timestamp"}


@pytest.fixture(params=MOST)
def queried_database(request, tmp_path) -> QueriedDatabase:
    if request.param == "sqlite":
        return QueriedDatabase(f"sqlite:///{tmp_path / 'asked.db'}")
    if request.param == "mariadb":
        return QueriedDatabase(request.getfixturevalue("mariadb_server").database())
    server = request.getfixturevalue("postgres_server")
    name = dict(part.split("=") for part in server.database().split())["dbname"]
    return QueriedDatabase(f"postgresql://tester@127.0.0.1:{server.port}/{name}")


@pytest.fixture
def lite(tmp_path) -> QueriedDatabase:
    return QueriedDatabase(f"sqlite:///{tmp_path / 'asked.db'}")


def sales(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(r["id"], r["date"], r["name"], r["sales"], r["modified"].removesuffix(".000000")) for r in rows]


def sale(number: int, modified: str) -> tuple[Any, ...]:
    return (number, "2019-11-14", "Ann", "1.00", modified)


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in rows]


@on_every_database
def test_sales(queried_database, tmp_path):
    queried_database.make_sales()
    rows, at = read_once(make_query_source(queried_database, tmp_path))
    assert sales(rows) == SALES
    assert {place.topic for place in at} == {"sales"}
    queried_database.run("UPDATE sales SET sales = 175, modified = '2019-11-20 10:00:00' WHERE id = 2")
    queried_database.add_sales((5, "2019-11-14", "Robert", "233.00", "2019-11-21 09:00:00"))
    rows, at = read_once(make_query_source(queried_database, tmp_path), at)
    assert sales(rows) == [
        (2, "2019-11-11", "Lee", "175.00", "2019-11-20 10:00:00"),
        (5, "2019-11-14", "Robert", "233.00", "2019-11-21 09:00:00"),
    ]
    assert read_once(make_query_source(queried_database, tmp_path), at) == ([], at)


def test_rows_with_the_cursor_value_of_the_last_row_are_read(queried_database, tmp_path):
    """A row with the same time as the last row is read later. Rows that were read are not read again."""
    queried_database.make_sales()
    one = make_query_source(queried_database, tmp_path, overlap="0 seconds")
    _, at = read_once(one)
    last = SALES[-1][-1]
    queried_database.add_sales((5, "2019-11-14", "Ann", "1.00", last), (6, "2019-11-14", "Bob", "2.00", last))
    queried_database.run(f"UPDATE sales SET sales = 7, modified = '{last}' WHERE id = 4")
    rows, at = read_once(make_query_source(queried_database, tmp_path, overlap="0 seconds"), at)
    assert sorted(ids(rows)) == [4, 5, 6]
    assert read_once(make_query_source(queried_database, tmp_path, overlap="0 seconds"), at) == ([], at)


def test_late_commits_within_the_overlap_are_read(queried_database, tmp_path):
    queried_database.make_sales()
    _, at = read_once(make_query_source(queried_database, tmp_path))
    queried_database.add_sales(
        (5, "2019-11-14", "Ann", "1.00", "2019-11-13 11:28:27"), (6, "2019-11-14", "Ann", "1.00", "2019-11-13 11:28:26")
    )
    rows, at = read_once(make_query_source(queried_database, tmp_path), at)
    assert ids(rows) == [5], "the one is five minutes late, the other a second more"
    assert read_once(make_query_source(queried_database, tmp_path), at)[0] == []


@pytest.mark.parametrize("server", EVERY[1:])
def test_rows_of_a_late_commit_are_read(server, request, tmp_path):
    """Their times are older than rows that were read while the transaction was open."""
    asked = QueriedDatabase(url_of(server, request))
    asked.make_sales()
    with asked.engine.connect() as open_:
        open_.exec_driver_sql("INSERT INTO sales VALUES (5, '2019-11-14', 'Ann', 1, '2019-11-14 10:00:00')")
        asked.add_sales((6, "2019-11-14", "Bob", "2.00", "2019-11-14 10:01:00"))
        rows, at = read_once(make_query_source(asked, tmp_path))
        assert ids(rows) == [1, 2, 3, 4, 6]
        open_.commit()
    rows, at = read_once(make_query_source(asked, tmp_path), at)
    assert ids(rows) == [5]


def url_of(server: str, request: Any) -> str:
    if server == "mariadb":
        return request.getfixturevalue("mariadb_server").database()
    pg = request.getfixturevalue("postgres_server")
    name = dict(part.split("=") for part in pg.database().split())["dbname"]
    return f"postgresql://tester@127.0.0.1:{pg.port}/{name}"


def test_positions_increase_although_the_clock_goes_back(queried_database, tmp_path):
    """A restart keeps the order too."""
    queried_database.make_sales()
    rows, at = read_once(make_query_source(queried_database, tmp_path))
    queried_database.run("UPDATE sales SET sales = 1, modified = '2019-11-13 11:30:00' WHERE id = 4")
    later, at = read_once(make_query_source(queried_database, tmp_path), at)
    assert [(r["id"], r["sales"]) for r in later] == [(4, "1.00")] and later[0]["_snapshot"] > rows[-1]["_snapshot"]
    queried_database.run(f"UPDATE sales SET sales = 211, modified = '{SALES[3][-1]}' WHERE id = 4")
    back, at = read_once(make_query_source(queried_database, tmp_path), at)
    assert [(r["id"], r["sales"]) for r in back] == [(4, "211.00")], "as it was before, and yet a change"
    assert read_once(make_query_source(queried_database, tmp_path), at)[0] == []


def test_rows_are_read_although_the_clock_of_the_database_goes_back(lite, tmp_path, monkeypatch):
    """The end of daylight saving time, or a failover to a server whose clock is behind."""
    clock = [datetime(2019, 11, 13, 11, 40)]
    monkeypatch.setattr(QueryConnection, "read_clock", lambda _: clock[-1])
    lite.make_sales()
    _, at = read_once(make_query_source(lite, tmp_path))
    clock.append(datetime(2019, 11, 13, 10, 40))
    lite.add_sales((5, "2019-11-13", "Ann", "1.00", "2019-11-13 10:39:00"))
    rows, at = read_once(make_query_source(lite, tmp_path), at)
    assert ids(rows) == [5]
    clock.append(datetime(2019, 11, 13, 10, 50))
    lite.add_sales((6, "2019-11-13", "Ann", "1.00", "2019-11-13 10:49:00"))
    rows, at = read_once(make_query_source(lite, tmp_path), at)
    assert ids(rows) == [6]


@on_every_database
def test_row_with_a_future_time_does_not_hide_others(queried_database, tmp_path):
    queried_database.make_sales()
    queried_database.add_sales((9, "2019-11-14", "Eve", "1.00", "2999-01-01 00:00:00"))
    rows, at = read_once(make_query_source(queried_database, tmp_path))
    assert ids(rows) == [1, 2, 3, 4, 9]
    now = (
        "localtimestamp"
        if queried_database.kind == "postgresql"
        else "now()"
        if queried_database.kind == "mariadb"
        else "current_timestamp"
    )
    queried_database.run(f"INSERT INTO sales SELECT 10, date, name, sales, {now} FROM sales WHERE id = 1")
    rows, at = read_once(make_query_source(queried_database, tmp_path), at)
    assert ids(rows) == [10]


def test_start_after_skips_older_rows(queried_database, tmp_path):
    queried_database.make_sales()
    queried_database.add_sales(
        (5, "2019-11-14", "Ann", "1.00", "2019-11-20 00:00:00"), (6, "2019-11-14", "Bob", "2.00", "2019-11-20 00:00:01")
    )
    one = {"start_after": "2019-11-20 00:00:00", "overlap": "30 days"}
    rows, at = read_once(make_query_source(queried_database, tmp_path, **one))
    assert ids(rows) == [6]
    queried_database.add_sales(
        (7, "2019-11-14", "Cid", "3.00", "2019-11-20 00:00:00"), (8, "2019-11-14", "Dan", "4.00", "2019-11-20 00:00:01")
    )
    assert ids(read_once(make_query_source(queried_database, tmp_path, **one), at)[0]) == [8], (
        "nor does the overlap reach below it"
    )


@on_every_database
def test_integer_cursor_and_composite_key(queried_database, tmp_path):
    queried_database.run("CREATE TABLE stock (place varchar(9), item int, seen bigint NOT NULL, PRIMARY KEY (place, item))")
    queried_database.run("INSERT INTO stock VALUES ('a', 1, 10), ('a', 2, 11), ('b', 1, 12)")
    one = {"table": "stock", "cursor_column": "seen", "keys": ("place", "item"), "overlap": 2}
    rows, at = read_once(make_query_source(queried_database, tmp_path, **one))
    assert [(r["place"], r["item"], r["seen"]) for r in rows] == [("a", 1, 10), ("a", 2, 11), ("b", 1, 12)]
    queried_database.run(
        "INSERT INTO stock VALUES ('b', 2, 9), ('c', 1, 10), ('c', 2, 13)",
        "UPDATE stock SET seen = 11 WHERE item = 1 AND place = 'b'",
    )
    rows, at = read_once(make_query_source(queried_database, tmp_path, **one), at)
    assert [(r["place"], r["item"], r["seen"]) for r in rows] == [("c", 1, 10), ("b", 1, 11), ("c", 2, 13)], "9 is too late"
    assert read_once(make_query_source(queried_database, tmp_path, **one), at)[0] == []


def test_run_polls_for_new_rows(queried_database, tmp_path):
    queried_database.make_sales()
    stop, rows = threading.Event(), []

    def take(batch: Any) -> None:
        rows.extend(list_payloads(batch))
        if len(rows) == 4 and list_payloads(batch):
            queried_database.add_sales((5, "2019-11-14", "Ann", "1.00", "2019-11-14 10:00:00"))
        if len(rows) == 5:
            stop.set()

    threading.Timer(60, stop.set).start()
    make_query_source(queried_database, tmp_path).run(Position(), take, stop, once=False)
    assert ids(rows) == [1, 2, 3, 4, 5]


def test_polls_keep_their_interval(lite, tmp_path):
    lite.make_sales()
    stop, rows = threading.Event(), []

    def take(batch: Any) -> None:
        rows.extend(list_payloads(batch))
        if len(rows) == 4 and list_payloads(batch):
            lite.add_sales((5, "2019-11-14", "Ann", "1.00", "2019-11-14 10:00:00"))
            threading.Timer(1, stop.set).start()

    make_query_source(lite, tmp_path, every="1 minute").run(Position(), take, stop, once=False)
    assert ids(rows) == [1, 2, 3, 4]


def test_wait_for_the_database_is_reported_in_seconds(lite, tmp_path):
    lite.make_sales()
    one = make_query_source(lite, tmp_path)
    assert one.features.waited_for() is None
    with lite.engine.connect() as holding:
        holding.exec_driver_sql("BEGIN EXCLUSIVE")
        one.before_refresh()
        time.sleep(1)
        doing, seconds = one.features.waited_for()
        assert doing == "asking its database" and 0.5 < seconds < 5
    ends = time.monotonic() + 30
    while one.features.waited_for() and time.monotonic() < ends:
        time.sleep(0.05)
    assert one.features.waited_for() is None and len(read_once(one)[0]) == len(SALES)


def test_new_column_is_read(queried_database, tmp_path):
    queried_database.make_sales()
    _, at = read_once(make_query_source(queried_database, tmp_path))
    queried_database.run(
        "ALTER TABLE sales ADD COLUMN note varchar(9)",
        "UPDATE sales SET note = 'x', modified = '2019-11-20 00:00:00' WHERE id = 1",
    )
    rows, at = read_once(make_query_source(queried_database, tmp_path), at)
    assert [(r["id"], r["note"]) for r in rows] == [(1, "x")]
    assert read_once(make_query_source(queried_database, tmp_path), at)[0] == []


def test_dropped_column_is_data_loss(queried_database, tmp_path):
    queried_database.make_sales()
    _, at = read_once(make_query_source(queried_database, tmp_path))
    queried_database.run("ALTER TABLE sales DROP COLUMN name")
    with pytest.raises(DataLoss, match="lacks the column 'name'"):
        read_once(make_query_source(queried_database, tmp_path), at)


CHUNKS = (1, 3, 1000)
HISTORIES = [
    pytest.param(seed, chunk, marks=() if CHUNKS.index(chunk) == seed else LONG) for seed in range(4) for chunk in CHUNKS
]


@pytest.mark.parametrize(("seed", "chunk"), HISTORIES)
def test_random_histories(lite, tmp_path, seed, chunk):
    """After any writes between reads of any length, the last row read of each key equals the row in the database,
    within the overlap. Reads of one key never go back in time."""
    one = random.Random(f"{seed} {chunk}")
    lite.run("CREATE TABLE items (a int, b int, at int NOT NULL, v int, PRIMARY KEY (a, b))")
    there: dict[tuple[int, int], tuple[int, int]] = {}
    known: dict[tuple[int, int], tuple[int, int]] = {}
    at, now = Position(), 100
    reader = make_query_source(lite, tmp_path, **OF_ITEMS, chunk_records=chunk)
    for _ in range(8):
        writes = []
        for _ in range(one.randrange(8)):
            now += one.choice([0, 0, 1, 3])
            key, row = (one.randrange(4), one.randrange(3)), (now - one.choice([0, 0, 1, 5]), one.randrange(3))
            there[key] = row
            writes.append(f"INSERT OR REPLACE INTO items VALUES {(*key, *row)}")
        lite.run(*writes)
        if one.random() < 0.5:
            reader = make_query_source(lite, tmp_path, **OF_ITEMS, chunk_records=chunk)
        else:
            reader._poller._once = reader._poller._was_read = False
        rows, at = read_once(reader, at)
        for row in rows:
            key, value = (row["a"], row["b"]), (row["at"], row["v"])
            assert known.get(key) != value
            known[key] = value
        assert known == there
    assert at


OF_ITEMS: dict[str, Any] = {"table": "items", "cursor_column": "at", "keys": ("a", "b"), "overlap": 5}


class Killed(BaseException):
    pass


def killing(monkeypatch: pytest.MonkeyPatch, commit: int, after: bool) -> None:
    """Before or after the commit of that number, as if the program were killed there."""
    appended, unharmed = [], QueryJournal.append

    def append(self: QueryJournal, *arguments: Any) -> None:
        if len(appended) == commit and not after:
            raise Killed
        unharmed(self, *arguments)
        appended.append(1)
        if len(appended) == commit + 1 and after:
            raise Killed

    monkeypatch.setattr(QueryJournal, "append", append)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("commit", [0, *(pytest.param(n, marks=LONG) for n in (1, 2)), 3])
def test_kill_at_a_commit_loses_and_doubles_nothing(lite, tmp_path, monkeypatch, commit, after):
    """Rows and the next position are one commit."""
    lite.make_sales()
    lite.add_sales((5, "2019-11-14", "Ann", "1.00", SALES[3][-1]), (6, "2019-11-14", "Ann", "1.00", SALES[3][-1]))
    killing(monkeypatch, commit, after)
    with pytest.raises(Killed):
        read_once(make_query_source(lite, tmp_path, chunk_records=1))
    monkeypatch.undo()
    assert sorted(ids(read_once(make_query_source(lite, tmp_path, chunk_records=1))[0])) == [1, 2, 3, 4, 5, 6]


def make_many(lite: QueriedDatabase, count: int) -> None:
    lite.run("CREATE TABLE items (a int, b int, at int NOT NULL, v int, PRIMARY KEY (a, b))")
    lite.put("items", [{"a": i, "b": i % 3, "at": i // 4, "v": i} for i in range(count)])


@pytest.mark.parametrize("ranges", [pytest.param(2, marks=LONG), 7])
def test_ranges_are_read_in_parallel(queried_database, tmp_path, ranges):
    make_many(queried_database, 200)
    rows, at = read_once(make_query_source(queried_database, tmp_path, **OF_ITEMS, ranges=ranges, chunk_records=17))
    assert sorted(row["v"] for row in rows) == list(range(200))
    queried_database.run("UPDATE items SET v = 1000, at = 60 WHERE a = 5")
    assert [
        row["v"] for row in read_once(make_query_source(queried_database, tmp_path, **OF_ITEMS, ranges=ranges), at)[0]
    ] == [1000]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("commit", [0, *(pytest.param(n, marks=LONG) for n in (1, 5)), 11])
def test_kill_at_a_commit_of_a_range_loses_and_doubles_nothing(lite, tmp_path, monkeypatch, commit, after):
    make_many(lite, 60)
    killing(monkeypatch, commit, after)
    with pytest.raises(Killed):
        read_once(make_query_source(lite, tmp_path, **OF_ITEMS, ranges=3, chunk_records=5))
    monkeypatch.undo()
    rows, at = read_once(make_query_source(lite, tmp_path, **OF_ITEMS, ranges=3, chunk_records=5))
    assert sorted(row["v"] for row in rows) == list(range(60))
    assert read_once(make_query_source(lite, tmp_path, **OF_ITEMS, ranges=3), at)[0] == []


def test_failing_range_stops_all(lite, tmp_path):
    make_many(lite, 60)
    lite.run("UPDATE items SET v = 'text' WHERE a = 57")
    with pytest.raises(Fatal, match="column 'v' has a value that int64 does not hold"):
        read_once(make_query_source(lite, tmp_path, **OF_ITEMS, ranges=3, chunk_records=5))
    lite.run("UPDATE items SET v = 57 WHERE a = 57")
    rows, _ = read_once(make_query_source(lite, tmp_path, **OF_ITEMS, ranges=3, chunk_records=5))
    assert sorted(row["v"] for row in rows) == list(range(60))


@pytest.mark.parametrize("room", [0, 20])
def test_full_disk_of_the_state_folder_is_reported(lite, tmp_path, room):
    """While the lock is written, and while the journal is written."""
    lite.make_sales()
    one = make_query_source(lite, tmp_path)
    with full_disk(room), pytest.raises(EnvironmentProblem, match="state cannot be written: File too large") as caught:
        read_once(one)
    assert "room on its disk" in caught.value.next_step
    assert len(read_once(one)[0]) == 4


def test_missing_journal_is_data_loss(lite, tmp_path):
    lite.make_sales()
    _, at = read_once(make_query_source(lite, tmp_path))
    shutil.rmtree(tmp_path / "state" / "sales")
    with pytest.raises(DataLoss, match="does not exist any more, so the rows that were read are lost"):
        read_once(make_query_source(lite, tmp_path), at)


@pytest.mark.parametrize(
    ("said", "word"), [({"keys": ("id", "name")}, "keys"), ({"cursor_column": "id", "overlap": None}, "cursor_column")]
)
def test_changed_keys_or_cursor_are_data_loss(lite, tmp_path, said, word):
    lite.make_sales()
    _, at = read_once(make_query_source(lite, tmp_path))
    with pytest.raises(DataLoss, match=f"was read with another {word}"):
        read_once(make_query_source(lite, tmp_path, **said), at)


@on_every_database
def test_null_cursor_value_is_data_loss(queried_database, tmp_path):
    stamp = STAMP[queried_database.kind]
    queried_database.run(f"CREATE TABLE sales (id int PRIMARY KEY, made {stamp} NOT NULL, modified {stamp} NULL)")
    queried_database.run("INSERT INTO sales VALUES (1, '2019-11-11 12:00:05', NULL)")
    with pytest.raises(DataLoss, match="'modified' is NULL") as caught:
        read_once(make_query_source(queried_database, tmp_path))
    assert "coalesce(modified, ...)" in caught.value.next_step
    said = "SELECT id, coalesce(modified, made) AS modified FROM sales"
    rows, _ = read_once(make_query_source(queried_database, tmp_path, query=said, schema=OF_QUERY))
    assert [(r["id"], r["modified"]) for r in rows] == [(1, "2019-11-11 12:00:05.000000")]


def test_duplicate_keys_are_data_loss(lite, tmp_path):
    lite.make_sales()
    with pytest.raises(DataLoss, match=r"2 rows more than keys \(name\)"):
        read_once(make_query_source(lite, tmp_path, keys=("name",)))


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"table": "nothing"}, "no table nothing"),
    ({"cursor_column": "changed"}, "has no column 'changed'"),
    ({"cursor_column": "name"}, "cannot show which rows are new"),
    ({"keys": ("code",)}, "no column 'code', which `keys` names"),
    ({"overlap": 5}, "'overlap' does not go with"),
    ({"start_after": "soon"}, "'start_after' is no value"),
    ({"start_after": "2019-11-20T00:00:00Z"}, "has no time zone"),
    ({"query": "SELEC 1", "schema": OF_QUERY}, "said while reading sales"),
    (
        {"query": "SELECT id, modified FROM nothing", "schema": {"id": "int64", "modified": "timestamp"}},
        "while reading sales",
    ),
    ({"query": "SELECT id FROM sales", "schema": {"id": "int64", "modified": "timestamp"}}, "while reading sales"),
    ({"query": "SELECT 1 AS id", "schema": {"id": "int65"}}, "Column 'id' in 'schema'"),
]
TOLD_BY_THE_SERVER = [(said, sentence) for said, sentence in MISTAKES if {"table", "query"} & said.keys()]


@pytest.mark.parametrize(("said", "sentence"), MISTAKES)
def test_config_errors_are_explained(queried_database, tmp_path, said, sentence):
    queried_database.make_sales()
    expect_mistake(queried_database, tmp_path, said, sentence)


def expect_mistake(asked: QueriedDatabase, folder: Path, said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigProblem, match=sentence) as caught:
        read_once(make_query_source(asked, folder, **said))
    assert caught.value.next_step
    assert not (folder / "state" / "sales").exists(), "nothing is kept of what was asked wrongly"


@pytest.mark.slow
def test_config_errors_found_by_mariadb_are_explained(mariadb_server, tmp_path):
    asked = QueriedDatabase(mariadb_server.database())
    asked.make_sales()
    for said, sentence in TOLD_BY_THE_SERVER:
        expect_mistake(asked, tmp_path, said, sentence)


@pytest.mark.parametrize("server", EVERY[1:])
def test_unreachable_server_is_retryable(server, request, tmp_path):
    gone = QueriedDatabase(re.sub(r":\d+/", ":9/", url_of(server, request)))
    began = time.monotonic()
    with pytest.raises(Retryable):
        read_once(make_query_source(gone, tmp_path))
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("server", EVERY[1:])
def test_query_that_writes_is_refused(server, request, tmp_path):
    asked = QueriedDatabase(url_of(server, request))
    asked.make_sales()
    text = "WITH gone AS (DELETE FROM sales RETURNING *) SELECT id, modified FROM gone"
    with pytest.raises((ConfigProblem, Retryable)):
        read_once(make_query_source(asked, tmp_path, query=text, schema=OF_QUERY))
    assert len(read_once(make_query_source(asked, tmp_path))[0]) == 4


def test_colon_in_a_query_is_no_parameter(queried_database, tmp_path):
    queried_database.make_sales()
    text = "SELECT id, modified, ':x' AS what FROM sales WHERE name <> '%' AND name <> ' :y'"
    schema = {"id": "int64", "modified": "timestamp", "what": "string"}
    assert [
        row["what"] for row in read_once(make_query_source(queried_database, tmp_path, query=text, schema=schema))[0]
    ] == [":x"] * 4
