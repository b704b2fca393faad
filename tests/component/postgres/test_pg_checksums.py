"""Checksums of rows in PostgreSQL, and of the same rows in DuckDB."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import product
from random import Random
from typing import Any, get_args

import psycopg
import pyarrow as pa
import pytest
from support.summed_rows import (
    CHANGED_TYPES,
    COLUMNS,
    ROWS,
    VARIANTS,
    ArrowSums,
    Sum,
    list_arrow_columns,
    make_all_rows,
    make_changed_rows,
)

from adapters.sql.checksums import (
    SummedColumn,
    can_render_duckdb,
    can_render_postgres,
    kind_of_postgres,
    render_bucket_condition,
    render_sums,
)
from adapters.sql.dialect import POSTGRES
from replicator.ports.reads import BUCKETS, ChecksumKind, KeyRange

pytestmark = pytest.mark.postgres
KINDS: dict[str, ChecksumKind] = {name: column.kind for name, column in COLUMNS.items()}
CHANGED_KINDS: dict[str, ChecksumKind] = {name: types[0] for name, types in CHANGED_TYPES.items()}
ODD = ('a "b"', "50%", "%s", "it's", "Ü`", "A", "order")


@pytest.fixture(scope="module")
def database(postgres_server: Any) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server.database(), autocommit=True) as connection:
        yield connection


def create(database: psycopg.Connection[Any], name: str, types: Sequence[str], rows: pa.Table) -> str:
    quoted = [f'"{column}"'.replace('"a "b""', '"a ""b"""') for column in rows.column_names]
    columns = ", ".join(f"{column} {kind}" for column, kind in zip(quoted, types, strict=True))
    database.execute(f"DROP TABLE IF EXISTS {name}; CREATE TABLE {name} ({columns})".encode())
    with database.cursor() as cursor:
        values = ", ".join(["%s"] * len(types))
        cursor.executemany(
            f"INSERT INTO {name} VALUES ({values})".encode(), list(zip(*rows.to_pydict().values(), strict=True))
        )
    return name


def sum_rows(
    database: psycopg.Connection[Any],
    relation: str,
    columns: Sequence[SummedColumn],
    keys: Sequence[SummedColumn],
    *,
    within: KeyRange | None = None,
    excluded: str | None = None,
) -> list[Sum]:
    query = render_sums(POSTGRES, relation, columns, keys, within=within, excluded=excluded)
    return sorted(database.execute(query.encode()).fetchall())


def postgres_columns(types: Sequence[str], kinds: dict[str, ChecksumKind]) -> list[SummedColumn]:
    return [SummedColumn(name, kind, sql) for (name, kind), sql in zip(kinds.items(), types, strict=True)]


def test_equal_rows_have_equal_sums(database: psycopg.Connection[Any]) -> None:
    """The rows are in the types of a source, of a mirror and of a Delta table."""
    rows = make_all_rows()
    columns = list_arrow_columns(rows, KINDS)
    expected = ArrowSums(rows).sum(columns, columns[:1])
    assert sum(row[1] for row in expected) == ROWS and [row[0] for row in expected] == [0, 1, BUCKETS - 1]
    for types in ([c.postgres for c in COLUMNS.values()], [c.mirror for c in COLUMNS.values()]):
        table = create(database, "whole", types, rows)
        there = postgres_columns(types, KINDS)
        assert sum_rows(database, table, there, there[:1]) == expected
    for name, column in COLUMNS.items():
        assert kind_of_postgres(column.postgres) == column.kind, name
        assert can_render_postgres(column.kind, column.mirror) and can_render_duckdb(column.kind, column.arrow), name


def test_rows_in_another_order_have_the_same_sums(database: psycopg.Connection[Any]) -> None:
    columns = postgres_columns([c.postgres for c in COLUMNS.values()], KINDS)
    table = create(database, "whole", [c.type for c in columns], make_all_rows())
    reversed_rows = f"(SELECT * FROM {table} ORDER BY id DESC)"
    assert sum_rows(database, reversed_rows, columns, columns[:1]) == sum_rows(database, table, columns, columns[:1])


def test_every_change_changes_the_sums(database: psycopg.Connection[Any]) -> None:
    rows = make_changed_rows()
    types = [kind[1] for kind in CHANGED_TYPES.values()]
    table, duck = create(database, "changed", [*types, "int"], rows), ArrowSums(rows)
    columns, there = list_arrow_columns(rows, CHANGED_KINDS), postgres_columns(types, CHANGED_KINDS)
    found = []
    for number in range(len(VARIANTS)):
        one = f"(SELECT * FROM {{}} WHERE no = {number})"
        [total] = sum_rows(database, one.format(table), there, there[:1])
        assert [total] == duck.sum(columns, columns[:1], relation=one.format('"rows"'))
        found.append(total[2:])
    assert len({*found}) == len({low for low, _ in found}) == len({high for _, high in found}) == len(VARIANTS)


def test_values_swapped_between_rows_change_the_sums(database: psycopg.Connection[Any]) -> None:
    """The key is not one of the summed columns."""
    kinds: dict[str, ChecksumKind] = {"id": "integer", "name": "text"}
    there = postgres_columns(["bigint", "text"], kinds)
    found = [
        sum_rows(
            database,
            create(database, "two", ["bigint", "text"], pa.table({"id": [1, 1025], "name": names})),
            there[1:],
            there[:1],
        )
        for names in (["a", "b"], ["b", "a"])
    ]
    assert found[0][0][:2] == found[1][0][:2] == (1, 2) and found[0] != found[1]


def test_floats_have_equal_sums(database: psycopg.Connection[Any]) -> None:
    """The values are random bits, and numbers near which a server changes their text form."""
    random = Random(7)
    doubles = [struct.unpack("<d", random.randbytes(8))[0] for _ in range(3000)]
    scaled = [random.random() * 10.0 ** random.randrange(-8, 15) for _ in range(1000)]
    near = [sign * digit * 10.0**power for sign, digit, power in product((1, -1), (1, 1.5, 9.999), range(-8, 20))]
    special = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 5e-324, 2.0**53, 2.0**53 + 2, 1e18, -1e18]
    values = [value for value in (*doubles, *scaled, *near, *special) if value.is_integer() or not 1e15 <= abs(value) < 2e16]
    rows = pa.table({"id": range(len(values)), "f": values})
    kinds: dict[str, ChecksumKind] = {"id": "integer", "f": "float"}
    columns, there = list_arrow_columns(rows, kinds), postgres_columns(["bigint", "double precision"], kinds)
    table = create(database, "floats", ["bigint", "double precision"], rows)
    assert sum_rows(database, table, there, there[:1]) == ArrowSums(rows).sum(columns, columns[:1])


def test_infinite_times_are_not_null(database: psycopg.Connection[Any]) -> None:
    times = pa.array([2**63 - 1, -(2**63) + 1], pa.int64())
    kinds: dict[str, ChecksumKind] = {"id": "integer", "at": "timestamp", "seen": "timestamptz"}
    types = ["bigint", "timestamp without time zone", "timestamp with time zone"]
    there = postgres_columns(types, kinds)
    rows = pa.table({"id": [1, 2], "at": times.cast(pa.timestamp("us")), "seen": times.cast(pa.timestamp("us", "UTC"))})
    columns = list_arrow_columns(rows, kinds)
    texts = pa.table({"id": [1, 2], "at": ["infinity", "-infinity"], "seen": ["infinity", "-infinity"]})
    assert sum_rows(database, create(database, "ends", types, texts), there, there[:1]) == ArrowSums(rows).sum(
        columns, columns[:1]
    )


@pytest.mark.parametrize("setting", ["datestyle = 'SQL, DMY'", "datestyle = 'SQL, MDY'", "extra_float_digits = 0"])
def test_unsuitable_settings_never_give_equal_sums(database: psycopg.Connection[Any], setting: str) -> None:
    kinds: dict[str, ChecksumKind] = {"id": "integer"}
    there = postgres_columns(["bigint"], kinds)
    table = create(database, "few", ["bigint"], pa.table({"id": [7]}))
    expected = sum_rows(database, table, there, there)
    with database.transaction():
        database.execute(f"SET LOCAL {setting}".encode())
        assert sum_rows(database, table, there, there) != expected


def test_texts_of_other_types_have_equal_sums(database: psycopg.Connection[Any]) -> None:
    """The texts are those that a connector sends and a Delta table stores."""
    values = {
        "uuid": "0b5ad0a4-0000-4000-8000-00000000abcd",
        "jsonb": '{"a": 1, "bb": [1.10, null]}',
        "json": '{"b":1,  "a":2}',
        "inet": "10.0.0.1",
        "cidr": "10.0.0.0/8",
        "macaddr": "08:00:2b:01:02:03",
        "time(3) without time zone": "23:59:59.500000",
        "mood": "it's 1:b",
    }
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'it''s 1:b')")
    rows = pa.table({"id": [1, 2], **{f"c{n}": [text, None] for n, text in enumerate(values.values())}})
    kinds: dict[str, ChecksumKind] = {"id": "integer", **{f"c{n}": "text" for n in range(len(values))}}
    types = ["bigint", *values]
    table = create(database, "texts", types, rows)
    columns, there = list_arrow_columns(rows, kinds), postgres_columns(types, kinds)
    assert sum_rows(database, table, there, there[:1]) == ArrowSums(rows).sum(columns, columns[:1])
    assert {kind_of_postgres(sql, enumeration=sql == "mood") for sql in values} == {"text"}


def keyed_rows() -> pa.Table:
    ids = [n * 37 - 500 for n in range(400)]
    return pa.table(
        {ODD[0]: ids, ODD[1]: [f"{n % 9}%" for n in ids], **{name: [f"{name}{n}" for n in ids] for name in ODD[2:]}}
    )


@pytest.mark.parametrize("keys", [ODD[:1], ODD[:2], ODD[1:3]])
def test_buckets_ranges_and_exclusions_select_the_same_rows(
    database: psycopg.Connection[Any], keys: tuple[str, ...]
) -> None:
    """Keys are integers, texts and several columns. Their names have special characters."""
    rows = keyed_rows()
    kinds: dict[str, ChecksumKind] = {name: "integer" if name == ODD[0] else "text" for name in ODD}
    types = ["bigint" if name == ODD[0] else "text" for name in ODD]
    table, duck = create(database, "odd", types, rows), ArrowSums(rows)
    columns, there = list_arrow_columns(rows, kinds), postgres_columns(types, kinds)
    here, by = ([column for column in each if column.name in keys] for each in (columns, there))
    within = KeyRange("other", -100, 9000) if keys[0] == ODD[0] else None
    names = ", ".join(POSTGRES.quote_name(key) for key in keys)
    excluded = f"(SELECT {names} FROM {{}} AS x WHERE x.\"it's\" LIKE '%7')"
    found = sum_rows(database, table, there, by, within=within, excluded=excluded.format(table))
    assert found == duck.sum(columns, here, within=within, excluded=excluded.format('"rows"'))
    others = f"(SELECT * FROM {table} WHERE \"it's\" NOT LIKE '%7')"
    assert found == sum_rows(database, others, there, by, within=within)
    totals = sum_rows(database, table, there, by, within=within)
    assert len(found) < len(totals) > 200 and all(0 <= row[0] < BUCKETS for row in totals)
    chosen = [row[0] for row in totals[::3]]
    condition = render_bucket_condition(POSTGRES, by, chosen, within)
    selected = database.execute(f"SELECT * FROM {table} AS t WHERE {condition}".encode()).fetchall()
    assert sorted(selected) == sorted(duck.select_buckets(here, chosen, within))
    picked = f"(SELECT * FROM {table} AS t WHERE {condition})"
    assert sum_rows(database, picked, there, by) == totals[::3]
    assert duck.select_buckets(here, []) == []


def test_range_excludes_its_lower_and_includes_its_upper_bound(database: psycopg.Connection[Any]) -> None:
    there = postgres_columns(["bigint"], {"id": "integer"})
    table = create(database, "few", ["bigint"], pa.table({"id": [1, 2, 3, 4]}))
    ranges = [(1, 3, {2, 3}), (None, 2, {1, 2}), (2, None, {3, 4}), (None, None, {1, 2, 3, 4})]
    for above, upto, expected in ranges:
        within = KeyRange("id", above, upto)
        assert {row[0] for row in sum_rows(database, table, there, there, within=within)} == expected
        condition = render_bucket_condition(POSTGRES, there, [1, 2, 3, 4], within)
        assert {row[0] for row in database.execute(f"SELECT id FROM few AS t WHERE {condition}".encode())} == expected


def test_table_of_300_columns_has_equal_sums(database: psycopg.Connection[Any]) -> None:
    rows = pa.table({f"c{n}": [n, None] for n in range(300)})
    rows = rows.set_column(0, "c0", pa.array([1, 2]))
    kinds: dict[str, ChecksumKind] = dict.fromkeys(rows.column_names, "integer")
    types = ["integer"] * 300
    columns, there = list_arrow_columns(rows, kinds), postgres_columns(types, kinds)
    table = create(database, "wide", types, rows)
    assert sum_rows(database, table, there, there[:1]) == ArrowSums(rows).sum(columns, columns[:1])


def test_every_kind_has_rows() -> None:
    assert {*KINDS.values()} == {*get_args(ChecksumKind)}
