"""Snapshots of MariaDB for comparisons: sums, rows of buckets and of keys, and the stored offsets of a connector."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from servers.mariadb import MariaDb
from support.binlog_reader import BinlogReader
from support.summed_rows import ArrowSums, Sum, list_arrow_columns

from adapters.sources.backfill.mariadb import MariaDbComparison
from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.ports.reads import ComparedColumn, KeyRange, SourceSnapshot, TableSplit

pytestmark = pytest.mark.timeout(300)
NONE = pa.table({})


@pytest.fixture
def server(mariadb_server: MariaDb) -> Iterator[MariaDb]:
    reader = BinlogReader(mariadb_server.port, own=True, counted=True)
    reader.create()
    yield mariadb_server
    reader.drop()


@contextmanager
def snapshot(server: MariaDb, folder: Path, script: str, **more: Any) -> Iterator[SourceSnapshot]:
    """A snapshot of the table `t` in a new database; a script creates the table."""
    name = server.database().rpartition("/")[2]
    server.execute(f"USE {name}; {script}; ANALYZE TABLE t")
    dsn = f"mariadb://cdc:cdc@127.0.0.1:{server.port}"
    comparison = MariaDbComparison({"dsn": dsn, "table": f"{name}.t", "state": str(folder), **more})
    with comparison.open_snapshot(lambda _: None) as opened:
        yield opened


def split(opened: SourceSnapshot, within: KeyRange | None = None, without: pa.Table = NONE) -> TableSplit:
    kinds = [(name, kind) for name, kind in opened.kinds.items() if kind is not None]
    return TableSplit(tuple(ComparedColumn(name, name, kind) for name, kind in kinds), opened.keys, within, without)


def to_sums(table: pa.Table) -> list[Sum]:
    return [tuple(row.values()) for row in table.to_pylist()]  # type: ignore[misc]


def read_rows(frames: Iterator[pa.Table]) -> list[dict[str, Any]]:
    return [json.loads(value)["payload"]["after"] for frame in frames for value in frame["value"].to_pylist()]


ODD = """CREATE TABLE t (`50%` varchar(20) COLLATE utf8mb4_general_ci, `a ``b``` int unsigned, `%s` varbinary(8), `it's "`
text, PRIMARY KEY (`a ``b```, `50%`, `%s`));
INSERT INTO t SELECT concat(char(97 + seq % 9), '\\\\%s'''), 4294967295 - seq % 40,
unhex(concat('ff', lpad(hex(seq), 4, '0'))), if(seq % 7, seq, NULL) FROM seq_1_to_900"""
NAMES = ("50%", "a `b`", "%s", "it's \"")


def make_odd_rows() -> pa.Table:
    numbers = range(1, 901)
    values = [
        [f"{chr(97 + n % 9)}\\%s'" for n in numbers],
        [4294967295 - n % 40 for n in numbers],
        [b"\xff" + n.to_bytes(2, "big") for n in numbers],
        [str(n) if n % 7 else None for n in numbers],
    ]
    return pa.table(dict(zip(NAMES, values, strict=True)))


def test_rows_with_odd_names_and_composite_keys(server: MariaDb, tmp_path: Path) -> None:
    """The sums equal those of the same rows in a target, also without some keys. More than one statement compares them."""
    rows = make_odd_rows()
    with snapshot(server, tmp_path, ODD) as opened:
        assert opened.keys == ("a `b`", "50%", "%s") and opened.list_ranges(1000)[0] == []
        columns = list_arrow_columns(rows, {name: kind for name, kind in opened.kinds.items() if kind is not None})
        keys = [next(column for column in columns if column.name == name) for name in opened.keys]
        whole = to_sums(opened.sum(split(opened)))
        assert whole == ArrowSums(rows).sum(columns, keys) and len(whole) > 300
        within = KeyRange("a `b`", 4294967260, 4294967290)
        inside = pc.and_(pc.greater(rows["a `b`"], within.above), pc.less_equal(rows["a `b`"], within.upto))
        left_out = pa.concat_tables([rows.slice(100, 450), rows.slice(0, 1).set_column(2, "%s", [[b""]])])
        excluded = left_out.select(list(opened.keys))
        kept = pa.concat_tables([rows.slice(0, 100), rows.slice(550)])
        assert to_sums(opened.sum(split(opened, without=excluded))) == ArrowSums(kept).sum(columns, keys)
        found = to_sums(opened.sum(split(opened, within, excluded)))
        assert found == ArrowSums(kept).sum(columns, keys, within=within)
        chosen = [bucket for bucket, *_ in whole[::5]]
        expected = {row[3] for row in ArrowSums(rows).select_buckets(keys, chosen, within)}
        read = read_rows(opened.read(split(opened, within), chosen))
        assert {row["it's \""] for row in read} == expected and 10 < len(read) < 300
        assert len(read_rows(opened.read(split(opened, within), None))) == rows.filter(inside).num_rows
        assert len(read_rows(opened.read(TableSplit((), opened.keys, None, pa.table({})), None))) == 900
        by_key = read_rows(opened.read_keys(excluded))
        assert sorted(base64.b64decode(row["%s"]) for row in by_key) == sorted(rows.slice(100, 450)["%s"].to_pylist())


def test_columns_of_unread_types_are_left_out(server: MariaDb, tmp_path: Path) -> None:
    columns = "id int PRIMARY KEY, place point, long_number decimal(40,0), note text"
    values = "INSERT INTO t VALUES (1, POINT(1, 2), 7, 'a'), (2, NULL, NULL, 'b')"
    with snapshot(server, tmp_path, f"CREATE TABLE t ({columns}); {values}") as opened:
        assert opened.unread == {"place": "point", "long_number": "decimal(40,0)"}
        assert list(opened.kinds) == ["id", "note"]
        rows = [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}]
        assert read_rows(opened.read(split(opened), None)) == rows
        assert to_sums(opened.sum(split(opened)))
        assert read_rows(opened.read_keys(pa.table({"id": [2]}))) == rows[1:]
    key = "CREATE TABLE t (id decimal(40,0) PRIMARY KEY)"
    with pytest.raises(ConfigProblem, match=r"Column id .* decimal\(40,0\), which"), snapshot(server, tmp_path, key):
        pass


@pytest.mark.parametrize(
    ("kind", "stored", "keys"),
    [
        ("varchar(9) COLLATE utf8mb4_general_ci", ["a", "B ", "c"], ["A", "a", "b ", "B", "B ", "C"]),
        ("varchar(9) CHARACTER SET latin1", ["ü'\\", "z"], ["Ü'\\", "ü'\\", "x"]),
        ("varchar(9) COLLATE utf8mb4_bin", ["a"], ["a ", "A"]),
    ],
)
def test_texts_that_collate_equal_are_different_keys(
    server: MariaDb, tmp_path: Path, kind: str, stored: list[str], keys: list[str]
) -> None:
    values = ", ".join("('{}')".format(text.replace("\\", "\\\\").replace("'", "''")) for text in stored)
    with snapshot(server, tmp_path, f"CREATE TABLE t (id {kind} PRIMARY KEY); INSERT INTO t VALUES {values}") as opened:
        given = pa.table({"id": keys})
        assert {row["id"] for row in read_rows(opened.read_keys(given))} == {*stored} & {*keys}
        left = pa.table({"id": [text for text in stored if text not in keys]}, pa.schema([("id", pa.string())]))
        columns = list_arrow_columns(left, {"id": "text"})
        assert to_sums(opened.sum(split(opened, without=given))) == ArrowSums(left).sum(columns, columns)
        assert opened.list_ranges(0)[0] == []


def test_ranges_of_unsigned_numbers_contain_every_row(server: MariaDb, tmp_path: Path) -> None:
    script = "CREATE TABLE t (id int unsigned PRIMARY KEY, n int); INSERT INTO t SELECT seq * 1000003, 1 FROM seq_1_to_4000"
    rows = pa.table({"id": [n * 1000003 for n in range(1, 4001)], "n": [1] * 4000})
    with snapshot(server, tmp_path, script) as opened:
        ranges, _ = opened.list_ranges(1000)
        assert len(ranges) >= 3 and ranges[0].above is None and ranges[-1].upto is None
        columns = list_arrow_columns(rows, {"id": "integer", "n": "integer"})
        without = rows.select(["id"]).slice(500, 700)
        kept = pa.concat_tables([rows.slice(0, 500), rows.slice(1200)])
        for within in ranges:
            found = to_sums(opened.sum(split(opened, within, without)))
            assert found == ArrowSums(kept).sum(columns, columns[:1], within=within) and found
    for kind, mode in (("bigint unsigned", "precise"), ("bigint unsigned", "long")):
        wide = f"CREATE TABLE t (id {kind} PRIMARY KEY); INSERT INTO t SELECT 18446744073709551615 - seq FROM seq_1_to_2000"
        with snapshot(server, tmp_path, wide, bigint_unsigned=mode) as opened:
            assert opened.list_ranges(100)[0] == []
            key = pa.table({"id": pa.array([-2] if mode == "long" else [2**64 - 2], pa.decimal128(20))})
            key = key.cast(pa.schema([("id", pa.int64())])) if mode == "long" else key
            assert len(read_rows(opened.read_keys(key))) == 1


@contextmanager
def serve_offsets(answers: list[tuple[int, Any]]) -> Iterator[str]:
    """The URL of a worker that returns these answers over real HTTP, in order: status and stored offsets."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, offsets = answers.pop(0) if self.path == "/connectors/a%20b/offsets" else (500, [])
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps({"offsets": [{"partition": {}, "offset": one} for one in offsets]}).encode())

        def log_message(self, *_: object) -> None:
            pass

    served = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{served.server_port}/"
    finally:
        served.shutdown()
        thread.join()
        served.server_close()


TABLE = "CREATE TABLE t (id int PRIMARY KEY)"


def test_stored_offset_at_the_point_confirms_delivery(server: MariaDb, tmp_path: Path) -> None:
    answers: list[tuple[int, Any]] = []
    with (
        serve_offsets(answers) as url,
        snapshot(server, tmp_path, TABLE, connect={"url": url, "connector": "a b"}) as opened,
    ):
        file, position = map(int, opened.point.split(":"))
        here, end = f"binlog.{file:06}", position + 1
        for offsets, is_passed in (
            ([], False),
            ([None], False),
            ([{"lsn": 2**40}], False),
            ([{"file": here, "pos": end - 1}], False),
            ([{"file": here, "pos": end}], True),
            ([{"file": here, "pos": end, "snapshot": "INITIAL"}], False),
            ([{"file": f"binlog.{file - 1:06}", "pos": end + 10_000}], False),
            ([{"file": f"binlog.{file + 1000000}", "pos": 4}], True),
            ([{"file": here, "pos": 4}, {"file": here, "pos": end, "event": 2}], True),
        ):
            answers[:] = [(200, offsets)]
            assert opened.is_delivered() is is_passed, offsets
        answers[:] = [(409, [])]
        assert opened.is_delivered() is False
        answers[:] = [(404, []), (500, [])]
        with pytest.raises(EnvironmentProblem, match="has no offsets of a connector a b"):
            opened.is_delivered()
        with pytest.raises(EnvironmentProblem, match="does not answer as it should: Internal Server Error"):
            opened.is_delivered()


def test_delivery_is_unknown_without_kafka_connect(server: MariaDb, tmp_path: Path) -> None:
    with snapshot(server, tmp_path, TABLE) as opened:
        assert opened.is_delivered() is None
