"""Rows of MariaDB are read in the order of their keys, and reading resumes after the last key, for keys of any types."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers.mariadb import MariaDb
from support.binlog_reader import BinlogReader

from adapters.sources.backfill.mariadb import MariaDbBackfill

pytestmark = pytest.mark.timeout(300)

VALUES: dict[str, tuple[str, list[str], pa.DataType, list[Any]]] = {
    "a": ("varchar(9) COLLATE utf8mb4_general_ci", ["'é%'", "'B'", "'a'"], pa.string(), ["é%", "B", "a"]),
    "b": ("bigint unsigned", ["18446744073709551615", "7"], pa.int64(), [-1, 7]),
    "c": ("varbinary(4)", ["x'ff00'", "x'27'"], pa.binary(), [b"\xff\x00", b"'"]),
    "d": (
        "datetime(6)",
        ["'1969-12-31 23:59:59.5'", "'2024-01-01'"],
        pa.timestamp("us"),
        [datetime(1969, 12, 31, 23, 59, 59, 500_000), datetime(2024, 1, 1)],
    ),
    "e": ("decimal(6, 2)", ["-1.50", "10"], pa.decimal128(6, 2), [Decimal("-1.50"), Decimal("10.00")]),
    "f": ("date", ["'0999-01-01'", "'2024-02-29'"], pa.date32(), [date(999, 1, 1), date(2024, 2, 29)]),
    "g": ("varchar(9) CHARACTER SET latin1", ["'ü''\\\\'", "'z'"], pa.string(), ["ü'\\", "z"]),
}
"""For each column: its type, values in SQL, and the type and values in a target."""


WRITTEN: dict[str, list[Any]] = {
    "a": ["é%", "B", "a"],
    "b": [-1, 7],
    "c": ["/wA=", "Jw=="],
    "d": [-500_000, 1_704_067_200_000_000],
    "e": ["/2o=", "A+g="],
    "f": [-354_650, 19_782],
    "g": ["ü'\\", "z"],
}
"""The same values in records."""


class Killed(BaseException):
    """A kill of the process."""


@pytest.fixture
def streamed_server(mariadb_server: MariaDb) -> Iterator[MariaDb]:
    reader = BinlogReader(mariadb_server.port, own=True, counted=True)
    reader.create()
    yield mariadb_server
    reader.drop()


Row = tuple[int, ...]
"""A row: for each column the index of its value."""


def test_unfinished_backfill_resumes_after_the_last_key(streamed_server: MariaDb, tmp_path: Path) -> None:
    """Every delete has the position at which its row would have been read."""
    every: list[Row] = list(product(*(range(len(values)) for _, values, _, _ in VALUES.values())))
    stored, name = every[::2], streamed_server.database().rpartition("/")[2]
    columns = ", ".join(f"{column} {kind}" for column, (kind, *_) in VALUES.items())
    create = f"USE {name}; CREATE TABLE t ({columns}, PRIMARY KEY ({', '.join(VALUES)}))"
    streamed_server.execute(f"{create}; INSERT INTO t VALUES {', '.join(f'({render_literals(row)})' for row in stored)}")
    options = {"dsn": f"mariadb://cdc:cdc@127.0.0.1:{streamed_server.port}", "table": f"{name}.t", "state": str(tmp_path)}
    first = MariaDbBackfill({**options, "piece_rows": 40})
    with pytest.raises(Killed):
        first.rows(_kill)
    first.close()
    before = {to_row(payload["after"]) for payload in read_payloads(tmp_path)}
    later = set(Random(5).sample(stored, 20))
    for row in later:
        streamed_server.execute(f"DELETE FROM {name}.t WHERE ({', '.join(VALUES)}) = ({render_literals(row)})")
    second = MariaDbBackfill({**options, "piece_rows": 15})
    taken = second.rows(lambda _: None)
    read = [to_row(payload["after"]) for payload in read_payloads(tmp_path)]
    assert taken.resumed and len(before) == 40 and len(read) == taken.rows == len({*read})
    assert {*read} == before | ({*stored} - later)
    assert second.deletes(read_target_rows(every))[0] == len(every) - len(read)
    second.close()
    order = sort_on_server(streamed_server, name, every)
    last = max(order.index(row) for row in before)
    deletes = [payload for payload in read_payloads(tmp_path) if payload["op"] == "d"]
    low, high = taken.below[-1], max(payload["source"]["row"] for payload in deletes)
    found = {to_row(payload["before"]): payload["source"]["row"] for payload in deletes}
    assert found == {row: low if n <= last else high for n, row in enumerate(order) if row not in {*read}}
    assert low < high


def _kill(message: str) -> None:
    if message.endswith("rows read"):
        raise Killed


def render_literals(row: Row) -> str:
    return ", ".join(values[number] for number, (_, values, _, _) in zip(row, VALUES.values(), strict=True))


def read_target_rows(rows: list[Row]) -> pa.Table:
    """The rows as a target stores them."""
    columns = enumerate(VALUES.items())
    return pa.table({name: pa.array([value[3][row[i]] for row in rows], value[2]) for i, (name, value) in columns})


def read_payloads(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.rglob("*.parquet"))
    return [json.loads(value)["payload"] for file in files for value in pq.read_table(file)["value"].to_pylist()]


def to_row(values: Mapping[str, Any]) -> Row:
    return tuple(written.index(values[name]) for name, written in WRITTEN.items())


def sort_on_server(database: MariaDb, name: str, rows: list[Row]) -> list[Row]:
    """The rows in the order of the server, which has all of them."""
    values = ", ".join(f"({render_literals(row)}, {number})" for number, row in enumerate(rows))
    database.execute(f"USE {name}; CREATE TABLE o LIKE t; ALTER TABLE o ADD n int; INSERT INTO o VALUES {values}")
    found = database.rows(f"{name}.o ORDER BY {', '.join(VALUES)}", {"n": "n"})
    return [rows[int(row["n"] or 0)] for row in found]
