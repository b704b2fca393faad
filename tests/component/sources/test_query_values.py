"""Values of databases that the source `query` reads are exact, or the program stops and names the column."""

from __future__ import annotations

from typing import Any

import pytest
from support.queried_database import QueriedDatabase, make_query_source, read_once

from replicator.domain.errors import ConfigProblem, Fatal

OF_POSTGRES = {
    "small": ("smallint", "-32768", -32768),
    "whole": ("integer", "2147483647", 2147483647),
    "large": ("bigint", "-9223372036854775808", -9223372036854775808),
    "price": ("numeric(38,10)", "-1234567890123456789012345678.0123456789", "-1234567890123456789012345678.0123456789"),
    "any_price": ("numeric", "1e-40", "0." + 39 * "0" + "1"),
    "narrow": ("real", "16777217.5", 16777218.0),
    "wide": ("double precision", "0.1", 0.1),
    "nan": ("double precision", "'NaN'", "NaN"),
    "yes": ("boolean", "true", True),
    "text": ("text", "E'a''\\n\\u00e4\\U0001F600'", "a'\nä😀"),
    "fixed": ("char(3)", "'x'", "x  "),
    "bytes": ("bytea", "'\\x00ff'", "AP8="),
    "day": ("date", "'0001-01-01'", "0001-01-01"),
    "moment": ("time", "'23:59:59.999999'", "23:59:59.999999"),
    "local": ("timestamp", "'9999-12-31 23:59:59.999999'", "9999-12-31 23:59:59.999999"),
    "zoned": ("timestamptz", "'2024-03-31 02:30:00+05:30'", "2024-03-30 21:00:00.000000Z"),
    "id_": ("uuid", "'6f1e3a0c-0000-4000-8000-000000000001'", "6f1e3a0c-0000-4000-8000-000000000001"),
    "said": ("json", "'{\"a\":  1}'", '{"a":  1}'),
    "nothing": ("text", "NULL", None),
}
OF_MARIADB = {
    "tiny": ("tinyint", "-128", -128),
    "yes": ("boolean", "true", 1),
    "medium": ("mediumint unsigned", "16777215", 16777215),
    "whole": ("int unsigned", "4294967295", 4294967295),
    "large": ("bigint", "-9223372036854775808", -9223372036854775808),
    "largest": ("bigint unsigned", "18446744073709551615", "18446744073709551615"),
    "price": ("decimal(38,10)", "-1234567890123456789012345678.0123456789", "-1234567890123456789012345678.0123456789"),
    "narrow": ("float", "16777217.5", 16777218.0),
    "wide": ("double", "0.1", 0.1),
    "bits": ("bit(9)", "b'100000001'", 257),
    "year_": ("year", "2155", 2155),
    "text": ("text", "'a''\\nä😀'", "a'\nä😀"),
    "bytes": ("varbinary(9)", "x'00ff'", "AP8="),
    "blob_": ("blob", "x'ff00'", "/wA="),
    "day": ("date", "'1000-01-01'", "1000-01-01"),
    "moment": ("time(6)", "'23:59:59.999999'", "23:59:59.999999"),
    "local": ("datetime(6)", "'9999-12-31 23:59:59.999999'", "9999-12-31 23:59:59.999999"),
    "zoned": ("timestamp(6) NULL", "from_unixtime(1711832400.5)", "2024-03-30 21:00:00.500000Z"),
    "one": ("enum('x','y')", "'y'", "y"),
    "some": ("set('x','y')", "'y,x'", "x,y"),
    "said": ("json", "'{\"a\":  1}'", '{"a":  1}'),
    "nothing": ("text", "NULL", None),
}


def postgres(server: Any) -> QueriedDatabase:
    name = dict(part.split("=") for part in server.database().split())["dbname"]
    return QueriedDatabase(f"postgresql://tester@127.0.0.1:{server.port}/{name}")


MARIADB = pytest.param("mariadb", marks=pytest.mark.slow)


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.postgres), MARIADB])
def queried_database(request) -> QueriedDatabase:
    if request.param == "postgresql":
        return postgres(request.getfixturevalue("postgres_server"))
    return QueriedDatabase(request.getfixturevalue("mariadb_server").database())


def create_sales(database: QueriedDatabase, columns: dict[str, Any]) -> None:
    kinds = ", ".join(f"{name} {kind}" for name, (kind, *_) in columns.items())
    values = ", ".join(value for _, value, *_ in columns.values())
    database.run(
        f"CREATE TABLE sales (id int PRIMARY KEY, {kinds})", f"INSERT INTO sales VALUES (1, {values})".replace("%", "%%")
    )


def test_values_are_exact(queried_database, tmp_path):
    columns = OF_POSTGRES if queried_database.kind == "postgresql" else OF_MARIADB
    create_sales(queried_database, columns)
    [row], _ = read_once(make_query_source(queried_database, tmp_path, cursor_column="id"))
    assert {name: row[name] for name in columns} == {name: value for name, (*_, value) in columns.items()}


REFUSED_BY_POSTGRES = [
    ("timestamp", "'infinity'", "beyond what is read here"),
    ("numeric(5,2)", "'NaN'", "column 'bad' has a value that decimal128"),
    ("time", "'24:00:00'", "beyond what is read here"),
]
REFUSED_BY_MARIADB = [
    ("time", "'-01:00:00'", "column 'bad' has a value that time64"),
    ("time", "'838:59:59'", "column 'bad' has a value that time64"),
    ("date", "'0000-00-00'", "column 'bad' has a value that date32"),
    ("datetime", "'2024-00-01 00:00:00'", "column 'bad' has a value that timestamp"),
]


@pytest.mark.parametrize("number", range(4))
def test_unsupported_value_stops_the_source(queried_database, tmp_path, number):
    cases = REFUSED_BY_POSTGRES if queried_database.kind == "postgresql" else REFUSED_BY_MARIADB
    if number >= len(cases):
        pytest.skip("this database has fewer cases")
    kind, value, sentence = cases[number]
    if queried_database.kind == "mariadb":
        queried_database.run("SET GLOBAL sql_mode = ''")
    create_sales(queried_database, {"bad": (kind, value)})
    with pytest.raises(Fatal, match=sentence) as caught:
        read_once(make_query_source(queried_database, tmp_path, cursor_column="id"))
    assert "casts the column" in caught.value.next_step and value.strip("'") not in str(caught.value)


def test_text_in_a_numeric_column_of_sqlite_stops_the_source(tmp_path):
    database = QueriedDatabase(f"sqlite:///{tmp_path / 'd.sqlite'}")
    create_sales(database, {"bad": ("numeric(10,2)", "'abc'")})
    with pytest.raises(Fatal, match=r"a value cannot be read \(TypeError\)") as caught:
        read_once(make_query_source(database, tmp_path, cursor_column="id"))
    assert "casts the column" in caught.value.next_step and "abc" not in str(caught.value)


@pytest.mark.parametrize("kind", ["interval", "int[]", "point"])
@pytest.mark.postgres
def test_unsupported_type_is_a_config_problem(postgres_server, tmp_path, kind):
    database = postgres(postgres_server)
    create_sales(database, {"bad": (kind, "NULL")})
    with pytest.raises(ConfigProblem, match=r"Column 'bad' of sales is [A-Za-z]+, which has no type here"):
        read_once(make_query_source(database, tmp_path, cursor_column="id"))
    text = "SELECT id, bad::text AS bad FROM sales"
    assert read_once(
        make_query_source(database, tmp_path, cursor_column="id", query=text, schema={"id": "int32", "bad": "string"})
    )[0]


@pytest.mark.postgres
def test_start_after_is_an_instant_in_any_time_zone(postgres_server, tmp_path):
    """The time zone of the session has no effect."""
    database = postgres(postgres_server)
    database.run("CREATE TABLE sales (id int PRIMARY KEY, modified timestamptz NOT NULL)")
    database.run("INSERT INTO sales VALUES (1, '2024-01-01 00:00:00+00'), (2, '2024-01-01 01:00:00+00')")
    rows, at = read_once(make_query_source(database, tmp_path, start_after="2024-01-01T01:00:00+01:00"))
    assert [row["id"] for row in rows] == [2]
    database.run("INSERT INTO sales VALUES (3, '2024-01-01 02:56:00+02'), (4, '2024-01-01 02:54:00+02')")
    assert [
        row["id"] for row in read_once(make_query_source(database, tmp_path, start_after="2024-01-01T01:00:00+01:00"), at)[0]
    ] == [3]
