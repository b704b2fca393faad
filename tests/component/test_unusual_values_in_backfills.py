"""PostgreSQL rows with unusual values are read like those of a connector: exactly, or as rejected rows."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from support.backfilled_table import LANES, BackfilledTable

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.sources.backfill import PostgresComparison
from replicator.domain.out_of_range import OutOfRange
from replicator.ports.reads import TableSplit

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

SEED = 1
EDGES = [
    sign * ((1 << bits) + more) for bits in (63, 64, 112, 127, 128, 168, 224) for more in (-1, 0, 1) for sign in (1, -1)
]
"""Integers around the ends of 8, 16 and more bytes, and of the digits of seven bytes."""


class Source:
    """A database with a slot."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn, self.folder = dsn, folder
        self.slot = f"unusual_{dsn.rpartition('_')[2]}"
        self.execute("CREATE PUBLICATION shop FOR ALL TABLES")
        self.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", self.slot)

    def execute(self, statement: str, *parameters: Any) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement.encode(), parameters or None)

    def read(self, rules: OutOfRange | None = None) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
        """The rows of the table `t` from the decoder, and the errors of the rejected ones, by id."""
        options = {"dsn": self.dsn, "publication": "shop", "slot": self.slot, "table": "public.t"}
        with PostgresComparison({**options, "state": str(self.folder)}).open_snapshot(lambda _: None) as snapshot:
            [frame] = snapshot.read(TableSplit((), snapshot.keys, None, pa.table({})), None)
        decoder = DebeziumJsonDecoder({"out_of_range": {"public.t": rules}} if rules else {})
        spec = decoder.learn(frame, "public.t", decoder.route(frame)["fingerprint"][0].as_py())
        changes = decoder.decode(frame, spec)
        rows: list[dict[str, Any]] = pa.Table.to_pylist(changes)
        good = {row["id"]: row for row in rows if row["_error"] is None}
        return good, {row["id"]: row["_error"] for row in rows if row["_error"] is not None}


@pytest.fixture
def source(postgres_dsn: str, tmp_path: Path) -> Source:
    return Source(postgres_dsn, tmp_path)


def list_numbers() -> list[str]:
    random = Random(SEED)
    numbers = [*map(str, EDGES), "0.000", "-0.5", "1e100", "-1e100", "1e-400", f"{'9' * 5000}.{'9' * 700}"]
    for digits in (1, 18, 38, 39, 77, 500, 2000):
        for sign in ("", "-"):
            text = "".join(random.choices("0123456789", k=digits))
            places = random.randint(0, digits)
            numbers.append(f"{sign}{text[:places]}.{text[places:]}")
    return numbers


def test_numbers_of_any_length_are_exact(source: Source) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v numeric, asked text)")
    for row, number in enumerate([*list_numbers(), None]):
        source.execute("INSERT INTO t VALUES (%s, %s::numeric, trim_scale(%s::numeric)::text)", row, number, number)
    rows, rejected = source.read()
    assert not rejected and len(rows) > 50
    assert {row["id"]: row["v"] for row in rows.values()} == {row["id"]: row["asked"] for row in rows.values()}


REJECTED = {
    "numeric": ("NaN", "Infinity", "-Infinity"),
    "numeric(10,2)": ("NaN",),
    "numeric(38,0)": ("NaN",),
    "date": ("infinity", "-infinity"),
    "timestamp": ("infinity", "-infinity", "294276-12-31 23:59:59.999999"),
    "timestamp(3)": ("infinity", "-infinity"),
    "timestamptz": ("infinity", "-infinity"),
}


@pytest.mark.parametrize("kind", REJECTED)
def test_only_rows_with_infinite_values_are_rejected(source: Source, kind: str) -> None:
    values = REJECTED[kind]
    source.execute(f"CREATE DOMAIN own AS {kind}; CREATE TABLE t (id int PRIMARY KEY, v {kind}, w own)")
    source.execute("INSERT INTO t VALUES (0, NULL, NULL)")
    for row, value in enumerate(values, 1):
        source.execute(f"INSERT INTO t VALUES (%s, %s::{kind}, %s::{kind})", row, value, value)
    rows, rejected = source.read()
    assert list(rows) == [0] and rows[0]["v"] is None
    assert set(rejected) == set(range(1, len(values) + 1))
    infinity = "holds NaN or an infinity, and no finite number" if kind.startswith("numeric") else "holds infinity, or"
    assert all("OUT_OF_RANGE" in sentence and f"column 'v' {infinity}" in sentence for sentence in rejected.values())


def test_infinite_times_follow_the_rule_of_the_table(source: Source) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, d date, m timestamp, s timestamp(3), z timestamptz)")
    for row, value in enumerate(("infinity", "-infinity", "0044-03-15 10:00:00 BC", "0001-12-31 10:00:00 BC")):
        source.execute(f"INSERT INTO t VALUES ({row}, '{value}', '{value}', '{value}', '{value}')")
    rows, rejected = source.read(OutOfRange("clamp"))
    assert not rejected
    assert [{str(row[name])[:4] for name in "dmsz"} for row in rows.values()] == [{"9999"}, *[{"0001"}] * 3]


def test_backfill_continues_after_a_row_with_nan(postgres_dsn: str, tmp_path: Path) -> None:
    """The row in the targets does not change."""
    world = BackfilledTable(postgres_dsn, tmp_path, Random(SEED))
    world.backfill()
    with world.change_unseen():
        world.execute("ALTER TABLE items ADD price numeric")
        world.execute("UPDATE items SET note = 'new', price = CASE id WHEN 5 THEN 'NaN'::numeric ELSE id END")
    outcome = world.backfill()
    world.slot.drop()
    assert (outcome.rows, outcome.deleted) == (40, 0)
    [letter] = world.letters.read()
    assert (letter.code, letter.sentence) == (
        "OUT_OF_RANGE",
        "column 'price' holds NaN or an infinity, and no finite number",
    )
    for lane in LANES:
        rows = world.rows(lane, "_cdc_end_seq_1 IS NULL" if lane.into == "versions" else "true")
        expected = {key: ("as it was", None) if key == 5 else ("new", key) for key in range(1, 41)}
        assert {row["id"]: (row["note"], row["price"] and int(row["price"])) for row in rows} == expected, lane.id
