"""MariaDB tables that cannot be read completely are refused by name, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.mariadb import WITH_BINLOG, MariaDb, find_binaries
from support.binlog_reader import BinlogReader

from adapters.sources.backfill.mariadb import MariaDbBackfill, MariaDbCheck
from adapters.stack.layout import find_free_port
from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Fatal, Retryable

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDb]:
    """Its own server, because its counters are never reset."""
    folder = tmp_path_factory.mktemp("mariadb")
    found = find_binaries(folder)
    if isinstance(found, str):
        pytest.skip(found)
    started = MariaDb(found, folder / "server", find_free_port(), WITH_BINLOG)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def streamed_server(server: MariaDb) -> Iterator[MariaDb]:
    reader = BinlogReader(server.port, own=True, counted=True)
    reader.create()
    yield server
    reader.drop()


def read(server: MariaDb, folder: Path, **more: Any) -> int:
    dsn = f"mariadb://cdc:cdc@127.0.0.1:{server.port}/shop"
    backfill = MariaDbBackfill({"dsn": dsn, "table": "shop.t", "state": str(folder), **more})
    try:
        return backfill.rows(lambda _: None).rows
    finally:
        backfill.close()


def test_server_without_a_binlog_reader_is_refused(server: MariaDb, tmp_path: Path) -> None:
    with pytest.raises(Retryable, match="error 2003"):
        read(server, tmp_path, dsn="mariadb://cdc:cdc@127.0.0.1:1")
    with pytest.raises(EnvironmentProblem, match="No visible session reads the binlog"):
        read(server, tmp_path)


TABLES = {
    "a point": ("(id int PRIMARY KEY, p point)", r"Column p of shop\.t is of the type point"),
    "a float with digits": ("(id int PRIMARY KEY, f float(8, 3))", r"of the type float\(8,3\)"),
    "a comma in an enumeration": ("(id int PRIMARY KEY, e enum('a', 'b,c'))", "Column e"),
    "a decimal of 39 digits": ("(id int PRIMARY KEY, n decimal(39, 0))", r"decimal\(39,0\)"),
    "no key": ("(id int)", "no primary key"),
    "a key without an order": ("(e enum('b', 'a') PRIMARY KEY)", "cannot be read in its order"),
    "another engine": ("(id int PRIMARY KEY) ENGINE = Aria", "a table of the engine Aria"),
    "versions": ("(id int PRIMARY KEY) WITH SYSTEM VERSIONING", "is a system versioned"),
}


@pytest.mark.parametrize("case", TABLES)
def test_table_without_an_exact_form_is_refused(streamed_server: MariaDb, tmp_path: Path, case: str) -> None:
    columns, sentence = TABLES[case]
    streamed_server.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t {columns}")
    with pytest.raises(ConfigProblem, match=sentence):
        read(streamed_server, tmp_path)
    assert not list(tmp_path.rglob("*.parquet"))


def test_key_without_an_index_and_invalid_date_are_refused(streamed_server: MariaDb, tmp_path: Path) -> None:
    streamed_server.execute("DROP TABLE IF EXISTS t; CREATE TABLE t (id int NOT NULL, n int NOT NULL, day date)")
    with pytest.raises(ConfigProblem, match="no unique index over id, n"):
        read(streamed_server, tmp_path, keys=["id", "n"])
    streamed_server.execute("ALTER TABLE t ADD UNIQUE (n, id); INSERT INTO t VALUES (1, 1, '2024-01-01')")
    assert read(streamed_server, tmp_path, keys=["id", "n"]) == 1
    streamed_server.execute("SET sql_mode = ''; INSERT INTO t VALUES (1, 2, '2024-00-00')")
    with pytest.raises(Fatal, match=r"day of shop\.t holds a value"):
        read(streamed_server, tmp_path / "anew", keys=["n", "id"])
    with pytest.raises(ConfigProblem, match=r"no table shop\.missing"):
        read(streamed_server, tmp_path, table="shop.missing")


def test_server_without_complete_changes_is_refused(streamed_server: MariaDb, tmp_path: Path) -> None:
    streamed_server.execute(
        "DROP TABLE IF EXISTS t; CREATE TABLE t (id int PRIMARY KEY); SET GLOBAL binlog_row_image = MINIMAL"
    )
    with pytest.raises(EnvironmentProblem, match="binlog_row_image of the source's server is MINIMAL"):
        read(streamed_server, tmp_path / "image")
    streamed_server.execute("SET GLOBAL binlog_row_image = FULL")
    check = MariaDbCheck("db", {"dsn": f"mariadb://cdc:cdc@127.0.0.1:{streamed_server.port}", "tables": ["shop.*", "no.*"]})
    assert [(d.severity, d.sentence) for d in check.diagnose() if d.severity != "ok"] == [
        ("warning", "No table of the server is called no.*.")
    ]
    assert read(streamed_server, tmp_path / "fine") == 0
    streamed_server.execute("XA START 'a'; INSERT INTO t VALUES (1); XA END 'a'; XA PREPARE 'a'; XA COMMIT 'a'")
    with pytest.raises(EnvironmentProblem, match="XA PREPARE"):
        read(streamed_server, tmp_path / "prepared")
    assert [d.severity for d in check.diagnose()].count("warning") == 2
