"""COPY's binary format writes the same values as CSV."""

import math
from datetime import UTC, date, datetime, time
from random import Random

import psycopg
import pyarrow as pa
import pytest

from adapters.postgres.literals import can_copy_binary, copy_binary, copy_rows, copy_statement
from replicator.testing.contract import SEED

pytestmark = pytest.mark.postgres

KINDS = {
    "yes": ("bool", pa.bool_(), [True, False]),
    "small": ("int2", pa.int16(), [0, -(2**15), 2**15 - 1]),
    "middle": ("int4", pa.int32(), [0, -(2**31), 2**31 - 1]),
    "large": ("int8", pa.int64(), [0, -(2**63), 2**63 - 1]),
    "single": ("float4", pa.float32(), [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 1.401298464324817e-45]),
    "double": ("float8", pa.float64(), [0.1, -0.0, 5e-324, 1.7976931348623157e308, math.inf, math.nan]),
    "name": ("text", pa.string(), ["", " ", "é☃𝄞", 'say "hi", \\N\n\t', "NULL", "x" * 9000]),
    "short": ("varchar", pa.string(), ["", "a,b"]),
    "day": ("date", pa.date32(), [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)]),
    "clock": ("time", pa.time64("us"), [time(0), time(23, 59, 59, 999999)]),
    "local": ("timestamp", pa.timestamp("us"), [datetime(1, 1, 1), datetime(1999, 12, 31, 23, 59, 59, 999999)]),
    "zoned": (
        "timestamptz",
        pa.timestamp("us", "UTC"),
        [
            datetime(9999, 12, 30, tzinfo=UTC),
            datetime(1, 1, 2, tzinfo=UTC),
        ],
    ),
    "unsent": ("text[]", pa.list_(pa.string()), [[], ["a"], ["b,c", "", "{}"]]),
}


def make_rows(rng, count):
    schema = pa.schema({name: kind for name, (_, kind, _) in KINDS.items()})
    values = {n: [rng.choice([None, *some]) for _ in range(count)] for n, (_, _, some) in KINDS.items()}
    return pa.table(values, schema=schema)


def test_binary_and_csv_copy_write_the_same_rows(postgres_dsn):
    rows = make_rows(Random(SEED), 9000)
    assert can_copy_binary(rows)
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in KINDS.items())
    forms = ["array" if pa.types.is_list(kind) else "plain" for _, kind, _ in KINDS.values()]
    with psycopg.connect(postgres_dsn, options="-c timezone=UTC") as connection, connection.cursor() as cursor:
        for table in ("one", "other"):
            cursor.execute(f"CREATE TABLE {table} ({columns})")
        copy_binary(cursor, ["public", "one"], rows)
        copy_rows(cursor, copy_statement(["public", "other"], rows.column_names), rows, forms)
        for a, b in (("one", "other"), ("other", "one")):
            lacking = f"SELECT t::text FROM {a} AS t EXCEPT ALL SELECT t::text FROM {b} AS t"
            assert not cursor.execute(lacking).fetchall()
        (counted,) = cursor.execute("SELECT count(*) FROM one").fetchone()
    assert counted == rows.num_rows


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**62], pa.timestamp("us", "UTC")),
        pa.array([-(2**63) + 1], pa.timestamp("us")),
        pa.array([-(10**6)], pa.date32()),
        pa.array([1], pa.timestamp("ns")),
        pa.array(["1.5"]).cast(pa.decimal128(5, 2)),
        pa.array([b"x"], pa.binary()),
        pa.array([[1]], pa.list_(pa.int64())),
    ],
    ids=lambda column: str(column.type),
)
def test_unsupported_values_are_not_copied_in_binary(column):
    assert not can_copy_binary(pa.table({"id": pa.array([1], pa.int64()), "v": column}))
