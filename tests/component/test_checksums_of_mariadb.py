"""Checksums of rows in MariaDB, and of the same rows in DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from servers.mariadb import MariaDb
from support.summed_rows import (
    CHANGED_TYPES,
    COLUMNS,
    VARIANTS,
    ArrowSums,
    Sum,
    list_arrow_columns,
    make_all_rows,
    make_changed_rows,
)

from adapters.sources.backfill.mariadb import connect, fetch_rows
from adapters.sql.checksums import SummedColumn, kind_of_mariadb, render_bucket_condition, render_sums
from adapters.sql.dialect import MARIADB
from replicator.ports.reads import BUCKETS, ChecksumKind, KeyRange

pytestmark = pytest.mark.timeout(300)
KINDS: dict[str, ChecksumKind] = {name: column.kind for name, column in COLUMNS.items()}
CHANGED_KINDS: dict[str, ChecksumKind] = {name: types[0] for name, types in CHANGED_TYPES.items()}


@pytest.fixture(scope="module")
def database(mariadb_server: MariaDb) -> Iterator[Any]:
    connection = connect(mariadb_server.database())
    yield connection
    connection.close()


def create(database: Any, name: str, types: Sequence[str], rows: pa.Table) -> str:
    columns = ", ".join(
        f"{MARIADB.quote_name(column)} {kind}" for column, kind in zip(rows.column_names, types, strict=True)
    )
    with database.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {name}")
        cursor.execute(f"CREATE TABLE {name} ({columns})")
        values = ", ".join(["%s"] * len(types))
        cursor.executemany(f"INSERT INTO {name} VALUES ({values})", list(zip(*rows.to_pydict().values(), strict=True)))
    return name


def sum_rows(
    database: Any,
    relation: str,
    columns: Sequence[SummedColumn],
    keys: Sequence[SummedColumn],
    *,
    within: KeyRange | None = None,
    excluded: str | None = None,
) -> list[Sum]:
    query = render_sums(MARIADB, relation, columns, keys, within=within, excluded=excluded)
    return sorted(tuple(int(value) for value in row) for row in fetch_rows(database, query))  # type: ignore[misc]


def mariadb_columns(types: Sequence[str], kinds: dict[str, ChecksumKind]) -> list[SummedColumn]:
    return [SummedColumn(name, kind, sql) for (name, kind), sql in zip(kinds.items(), types, strict=True)]


def test_equal_rows_have_equal_sums(database: Any) -> None:
    rows, types = make_all_rows(), [column.mariadb for column in COLUMNS.values()]
    columns, sql_columns = list_arrow_columns(rows, KINDS), mariadb_columns(types, KINDS)
    assert sum_rows(database, create(database, "whole", types, rows), sql_columns, sql_columns[:1]) == ArrowSums(rows).sum(
        columns, columns[:1]
    )
    for name, column in COLUMNS.items():
        assert kind_of_mariadb(column.mariadb) == column.kind, name


def test_every_change_changes_the_sums(database: Any) -> None:
    rows = make_changed_rows()
    types = [kind[2] for kind in CHANGED_TYPES.values()]
    table, duck = create(database, "changed", [*types, "int"], rows), ArrowSums(rows)
    columns, sql_columns = list_arrow_columns(rows, CHANGED_KINDS), mariadb_columns(types, CHANGED_KINDS)
    found = []
    for number in range(len(VARIANTS)):
        one = f"(SELECT * FROM {{}} WHERE no = {number})"
        [total] = sum_rows(database, one.format(table), sql_columns, sql_columns[:1])
        assert [total] == duck.sum(columns, columns[:1], relation=one.format('"rows"'))
        found.append(total[2:])
    assert len({*found}) == len(VARIANTS)


def test_floats_have_equal_sums(database: Any) -> None:
    random = Random(7)
    scaled = [random.choice((1, -1)) * random.random() * 10.0 ** random.randrange(-30, 15) for _ in range(2000)]
    near = [sign * digit * 10.0**power for sign, digit, power in product((1, -1), (1, 1.5, 9.999), range(-20, 22))]
    values = [value for value in (*scaled, *near, 0.0, 1e300, 1e-300, 2.0**53) if value.is_integer() or abs(value) < 1e15]
    rows = pa.table({"id": range(len(values)), "f": values})
    kinds: dict[str, ChecksumKind] = {"id": "integer", "f": "float"}
    columns, sql_columns = list_arrow_columns(rows, kinds), mariadb_columns(["bigint", "double"], kinds)
    table = create(database, "floats", ["bigint", "double"], rows)
    assert sum_rows(database, table, sql_columns, sql_columns[:1]) == ArrowSums(rows).sum(columns, columns[:1])


@pytest.mark.parametrize(
    ("sql", "written", "arrow", "stored"),
    [
        ("bigint unsigned", 2**64 - 1, pa.int64(), -1),
        ("int(9) unsigned zerofill", 42, pa.int64(), 42),
        ("year", 2024, pa.int32(), 2024),
        ("tinyint(1)", -1, pa.int16(), -1),
        ("enum('a','B')", "B", pa.string(), "B"),
        ("set('a','b')", "a,b", pa.string(), "a,b"),
        ("json", '{"a":  1}', pa.string(), '{"a":  1}'),
        ("uuid", "0b5ad0a4-0000-4000-8000-00000000ABCD", pa.string(), "0b5ad0a4-0000-4000-8000-00000000abcd"),
        ("char(9) COLLATE utf8mb4_bin", "a ", pa.string(), "a"),
        ("time(3)", "23:59:59.5", pa.string(), "23:59:59.500000"),
        ("datetime", "2024-02-29 12:00:00", pa.timestamp("us"), 1_709_208_000_000_000),
        ("datetime(3)", "2024-02-29 12:00:00.120", pa.timestamp("us"), 1_709_208_000_120_000),
    ],
)
def test_other_types_have_equal_sums(database: Any, sql: str, written: Any, arrow: pa.DataType, stored: Any) -> None:
    """Values as a connector sends them and as a Delta table stores them."""
    kind = kind_of_mariadb(sql)
    assert kind is not None
    create(database, "other", ["int", f"{sql} NULL"], pa.table({"id": [1, 2], "v": [None, None]}))
    with database.cursor() as cursor:
        cursor.execute("UPDATE other SET v = %s WHERE id = 1", [written])
    rows = pa.table({"id": [1, 2], "v": pa.array([stored, None], arrow)})
    kinds: dict[str, ChecksumKind] = {"id": "integer", "v": kind}
    columns, sql_columns = list_arrow_columns(rows, kinds), mariadb_columns(["int", sql], kinds)
    assert sum_rows(database, "other", sql_columns, sql_columns[:1]) == ArrowSums(rows).sum(columns, columns[:1])


def test_precise_unsigned_numbers_are_decimals(database: Any) -> None:
    rows = pa.table({"id": pa.array([2**64 - 1, 0], pa.decimal128(20, 0))})
    kinds: dict[str, ChecksumKind] = {"id": "decimal"}
    columns, sql_columns = list_arrow_columns(rows, kinds), mariadb_columns(["bigint(20) unsigned"], kinds)
    table = create(database, "wide", ["bigint(20) unsigned"], pa.table({"id": pa.array([2**64 - 1, 0], pa.uint64())}))
    assert kind_of_mariadb("bigint(20) unsigned", precise=True) == "decimal"
    assert sum_rows(database, table, sql_columns, sql_columns) == ArrowSums(rows).sum(columns, columns)


def test_zero_dates_and_huge_rows_are_never_equal_to_null(database: Any) -> None:
    kinds: dict[str, ChecksumKind] = {"id": "integer", "d": "date", "b": "bytes"}
    types = ["int", "date", "longblob"]
    sql_columns = mariadb_columns(types, kinds)
    empty = sum_rows(
        database,
        create(database, "empty", types, pa.table({"id": [1], "d": [None], "b": [None]})),
        sql_columns,
        sql_columns[:1],
    )
    zero = create(database, "zero", types, pa.table({"id": [1], "d": ["0000-00-00"], "b": [None]}))
    assert sum_rows(database, zero, sql_columns, sql_columns[:1]) != empty
    with database.cursor() as cursor:
        cursor.execute("UPDATE zero SET d = NULL, b = repeat('a', @@max_allowed_packet - 9)")
    assert sum_rows(database, zero, sql_columns, sql_columns[:1]) != empty


@pytest.mark.parametrize("keys", [("a `b`",), ("a `b`", "50%"), ("50%", "%s")])
def test_buckets_ranges_and_exclusions_select_the_same_rows(database: Any, keys: tuple[str, ...]) -> None:
    ids = [n * 37 - 500 for n in range(400)]
    rows = pa.table({"a `b`": ids, "50%": [f"{n % 9}%" for n in ids], "%s": [f"x{n}" for n in ids], "it's \"": ids})
    kinds: dict[str, ChecksumKind] = {"a `b`": "integer", "50%": "text", "%s": "text", "it's \"": "integer"}
    types = ["bigint", "varchar(20)", "varchar(20)", "int"]
    create(database, "odd", types, pa.table({f"c{n}": column for n, column in enumerate(rows.columns)}))
    with database.cursor() as cursor:
        for n, name in enumerate(rows.column_names):
            cursor.execute(f"ALTER TABLE odd CHANGE c{n} {MARIADB.quote_name(name)} {types[n]}")
    duck, columns, sql_columns = ArrowSums(rows), list_arrow_columns(rows, kinds), mariadb_columns(types, kinds)
    key_columns, sql_keys = ([column for column in each if column.name in keys] for each in (columns, sql_columns))
    within = KeyRange("other", -100, 9000) if keys[0] == "a `b`" else None
    names = ", ".join(MARIADB.quote_name(key) for key in keys)
    excluded = f"(SELECT {names} FROM odd WHERE `%s` LIKE '%7')"
    found = sum_rows(database, "odd", sql_columns, sql_keys, within=within, excluded=excluded)
    assert found == duck.sum(
        columns,
        key_columns,
        within=within,
        excluded=excluded.replace("`%s`", '"%s"')
        .replace("odd", '"rows"')
        .replace(names, ", ".join(f'"{key}"' for key in keys)),
    )
    totals = sum_rows(database, "odd", sql_columns, sql_keys, within=within)
    others = "(SELECT * FROM odd WHERE `%s` NOT LIKE '%7')"
    assert found == sum_rows(database, others, sql_columns, sql_keys, within=within)
    assert len(found) < len(totals) > 200 and all(0 <= row[0] < BUCKETS for row in totals)
    chosen = [row[0] for row in totals[::3]]
    condition = render_bucket_condition(MARIADB, sql_keys, chosen, within)
    assert sum_rows(database, f"(SELECT * FROM odd AS t WHERE {condition})", sql_columns, sql_keys) == totals[::3]
