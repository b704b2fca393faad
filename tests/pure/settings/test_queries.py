"""Queries of projections: inputs, refusals, and SQL per engine."""

from __future__ import annotations

import pytest

from replicator.settings.queries import QueryContext, QueryProblem, read_query

TABLES = ("users", "cities", "orders", "items")


def keys(text: str, column: str) -> dict[str, str | None]:
    query, wrong = read_query(text, QueryContext("local", TABLES, column))
    assert query is not None, wrong
    return {table: key and key.text for table, key in query.keys.items()}


def get_problem(text: str, **said: object) -> QueryProblem:
    query, wrong = read_query(text, QueryContext(**{"engine": "local", "inputs": TABLES, **said}))
    assert query is None
    return wrong[0]


BOTH = {"users": '"city"', "cities": '"city"'}
BY_GROUPS = {
    "SELECT id, city, COUNT(*) OVER (PARTITION BY city) AS n FROM users": {"users": '"city"'},
    "SELECT u.id, u.city, c.state FROM users u LEFT JOIN cities c ON u.city = c.city": BOTH,
    "SELECT u.city FROM users u LEFT JOIN cities c ON u.city = c.name": {"users": '"city"', "cities": '"name"'},
    "SELECT u.id, u.city FROM users u JOIN cities c ON u.id = c.id": {"users": '"city"', "cities": None},
    "SELECT u.city FROM users u, cities c WHERE c.city = u.city": {"users": '"city"', "cities": '"city"'},
    "SELECT u.* FROM users u JOIN cities USING (city)": {"users": '"city"', "cities": '"city"'},
    "SELECT c.city FROM users u RIGHT JOIN cities c ON u.city = c.city": {"users": '"city"', "cities": '"city"'},
    "SELECT city FROM users WHERE id IN (SELECT user_id FROM orders)": {"users": '"city"', "orders": None},
    "SELECT city, (SELECT MAX(id) FROM orders) AS m FROM users": {"users": '"city"', "orders": None},
    "SELECT UPPER(town) AS city, COUNT(*) AS n FROM users GROUP BY town": {"users": 'UPPER("town")'},
    "SELECT CAST(at AS DATE) AS city, COUNT(*) AS n FROM users GROUP BY 1": {"users": 'TRY_CAST("at" AS DATE)'},
    "SELECT town AS city, n FROM (SELECT town, COUNT(*) AS n FROM users GROUP BY town) x": {"users": '"town"'},
    "WITH r AS (SELECT * FROM users) SELECT a.city FROM r a JOIN r b ON a.city = b.city": {"users": '"city"'},
    "SELECT city, id FROM users UNION ALL SELECT name, 0 FROM cities": {"users": '"city"', "cities": '"name"'},
    "SELECT city, RANK() OVER w AS r FROM users WINDOW w AS (PARTITION BY city ORDER BY id)": {"users": '"city"'},
    "SELECT u.city FROM users u LEFT ANTI JOIN cities c ON u.city = c.city": {"users": '"city"', "cities": '"city"'},
    # What a row that stays anyway meets does not choose it.
    "SELECT o.city FROM orders o JOIN users u ON o.id = u.id LEFT JOIN cities c ON o.city = c.city AND u.city = c.city": {
        "orders": '"city"', "users": None, "cities": '"city"',
    },
}  # fmt: skip


@pytest.mark.parametrize("text", BY_GROUPS)
def test_tables_that_are_read_by_groups(text):
    assert keys(text, "city") == BY_GROUPS[text]


NOT_BY_GROUPS = {
    "SELECT city,\n RANK() OVER (ORDER BY id) AS r FROM users": 2,
    "SELECT city FROM users LIMIT 3": 1,
    "SELECT city FROM (SELECT city FROM users LIMIT 3) x": 1,
    "SELECT MAX(city) AS city FROM users": 1,
    "SELECT id FROM users": 1,
    "SELECT u.city FROM users u RIGHT JOIN cities c ON u.city = c.city": 1,
    "SELECT u.city FROM users u FULL JOIN cities c ON u.city = c.city": 1,
    "SELECT a.city FROM users a JOIN users b ON a.id = b.id": 1,
    "SELECT city FROM users, cities": 1,
    "SELECT city, COUNT(*) AS n FROM users GROUP BY CUBE (city)": 1,
    "SELECT city, n FROM (SELECT id, COUNT(*) AS n FROM users GROUP BY id) x JOIN cities USING (id)": 1,
    "SELECT city, COUNT(*) OVER (PARTITION BY id) AS n FROM users": 1,
    "SELECT city FROM users TABLESAMPLE (10 PERCENT)": 1,
    "SELECT * FROM (SELECT id, city FROM users) PIVOT (MAX(id) FOR city IN ('a'))": 1,
    "SELECT 'x' AS city FROM users": 1,
    "SELECT *, town AS city FROM users": 1,
    "SELECT u.*, c.city FROM users u JOIN cities c ON u.town = c.city": 1,
}


@pytest.mark.parametrize("text", NOT_BY_GROUPS)
def test_query_that_mixes_groups_is_refused(text):
    wrong = get_problem(text, partition_by="city")
    assert (wrong.code, wrong.line) == ("not_by_group", NOT_BY_GROUPS[text])


@pytest.mark.parametrize(
    ("text", "code", "line", "words"),
    [
        ("SELECT a FROM\n users WHERE (a = 1 ORDER", "sql", 2, "Expecting )"),
        ("SELECT 'a\nFROM users", "sql", 2, "does not end"),
        ("SELECT a FROM\n userz", "unknown_table", 2, "'userz'"),
        ("SELECT a FROM lake.users", "unknown_table", 1, "'lake.users'"),
        ("SELECT * FROM users WHERE a IN (SELECT b FROM\n\nsecrets)", "unknown_table", 3, "'secrets'"),
        ("SELECT * FROM read_csv('/etc/passwd')", "sql_table", 1, "function"),
        ("SELECT * FROM parquet.`/etc/passwd`", "unknown_table", 1, "unknown table"),
        ("WITH users AS (SELECT 1) SELECT * FROM users", "sql_table", 1, "'users'"),
        ("SELECT a,\n current_date() AS d FROM users", "sql_clock", 2, "'current_date'"),
        ("SELECT NOW() AS d FROM users", "sql_clock", 1, "'now'"),
        ("SELECT rand() AS d FROM users", "sql_clock", 1, "'rand'"),
        ("SELECT unix_timestamp() AS d FROM users", "sql_clock", 1, "'current_timestamp'"),
        ("SELECT a FROM users WHERE a > :since", "sql_parameter", 1, "'since'"),
        ("DROP TABLE users", "sql", 1, "one SELECT"),
        ("SELECT 1 AS a; SELECT 2 AS a", "sql", 1, "one SELECT"),
        ("", "sql", 1, "one SELECT"),
        ("SELECT " + "(" * 5000 + "1" + ")" * 5000, "sql", 1, ""),
    ],
)
def test_invalid_query_is_refused_with_its_line(text, code, line, words):
    wrong = get_problem(text)
    assert (wrong.code, wrong.line) == (code, line), wrong
    assert words in wrong.sentence


def test_parameters_are_replaced_by_values():
    said = QueryContext("local", TABLES, parameters={"since": "2021-10-17", "name": "it's", "most": 3})
    text = "SELECT * FROM users WHERE at > CAST(:since AS DATE) AND name <> :name AND id < :most"
    query, _ = read_query(text, said)
    assert query is not None
    assert "'2021-10-17'" in query.text
    assert "'it''s'" in query.text
    assert '"id" < 3' in query.text
    assert get_problem("SELECT a FROM users", parameters={"sinse": 1}).code == "sql_parameter"


def test_query_is_rendered_for_each_engine():
    text = "SELECT `select`, collect_list(b) AS x FROM users GROUP BY `select`"
    local, spark = (read_query(text, QueryContext(engine, TABLES, "select"))[0] for engine in ("local", "spark"))
    assert local is not None and spark is not None
    assert 'ARRAY_AGG("b")' in local.text
    assert "COLLECT_LIST(`b`)" in spark.text
    assert [query.keys["users"].text for query in (local, spark)] == ['"select"', "`select`"]


def test_columns_used_by_a_query():
    assert read_query("SELECT a, b AS c FROM users u WHERE D = 1", QueryContext("local", TABLES))[0].columns >= {
        "a",
        "b",
        "d",
    }
    for text in ("SELECT * FROM users", "SELECT a FROM users NATURAL JOIN cities", "SELECT users FROM users"):
        assert read_query(text, QueryContext("local", TABLES))[0].columns is None
