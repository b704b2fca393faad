"""Sources that query a database: their keys, and what is passed to the adapter."""

from __future__ import annotations

import pytest

from replicator.wiring import adapters

ASKED = """\
pipeline: asked
sources:
  sales:
    format: rows
    transport: query
    dsn: mariadb://shop:hunter2@db/shop
    table: sales
    cursor_column: modified
{more}sinks:
  lake: {{kind: delta, path: ./lake}}
dead_letters: {{path: ./rejects}}
tables:
  - match: sales
    source: sales
{table}    to: [{{sink: lake}}]
"""
KEYS = "    keys: [id]\n"
QUERY = "query: SELECT 1 AS id"


@pytest.fixture
def write(folder):
    """Write the config with more lines of the source; the number of the first of them."""

    def write_config(more: str = "", table: str = KEYS, old: str = "", new: str = "") -> int:
        lines = "".join(f"    {line}\n" for line in more.splitlines())
        folder.write(ASKED.format(more=lines, table=table).replace(old, new))
        return 9

    return write_config


def test_options_passed_to_its_adapter(folder, write):
    write("start_after: 2019-11-20 00:00:00\noverlap: 10 minutes\nevery: 2 minutes\nranges: 4")
    loaded = folder.load()
    told = adapters.make_check_options(loaded, "sales")
    assert told == {
        "transport": "query",
        "format": "rows",
        "dsn": "mariadb://shop:hunter2@db/shop",
        "table": "sales",
        "cursor_column": "modified",
        "start_after": "2019-11-20 00:00:00",
        "overlap": "10 minutes",
        "every": "2 minutes",
        "ranges": 4,
        "keys": ("id",),
        "state": told["state"],
    }
    assert "hunter2" not in repr(loaded.settings) and "hunter2" not in str(loaded.to_redacted())
    assert adapters.build_decoder(loaded, "sales")


def test_an_overlap_of_numbers(folder, write):
    write("overlap: 5000\nstart_after: 7")
    told = folder.load().settings.sources["sales"]
    assert (told.overlap, told.start_after) == (5000, 7)


@pytest.mark.parametrize(
    ("more", "table", "problem"),
    [
        ("overlap: much", KEYS, ("duration", "must be a time such as")),
        ("overlap: -1", KEYS, ("", "overlap")),
        ("every: often", KEYS, ("duration", "must be a time such as 30 seconds")),
        ("ranges: 0", KEYS, ("", "ranges")),
        ("", "", ("missing", "which do not say what their key is")),
        ("", KEYS + "    schema: {id: int64}\n", ("inapplicable", "rows of a table of a database have the types")),
        (QUERY, KEYS, ("missing", "the columns of its query are unknown")),
        (QUERY, KEYS + "    schema: {id: int64}\n", ("missing", "does not declare the 'cursor_column'")),
        ("operation_column: op", KEYS, ("inapplicable", "means nothing for a query")),
        ("sequence_columns: [no]", KEYS, ("inapplicable", "means nothing for a query")),
    ],
)
def test_invalid_options_are_refused(folder, write, more, table, problem):
    write(more, table)
    code, sentence = problem
    found = [f for f in folder.findings() if sentence in str(f)]
    assert found and (found[0].code == code or not code)


@pytest.mark.parametrize("dsn", ["host=db dbname=shop", "mariadb", "://x", "MariaDB://x/y"])
def test_invalid_database_url_is_refused_without_its_password(folder, write, dsn):
    write(old="mariadb://shop:hunter2@db/shop", new=dsn)
    finding = folder.only()
    assert (finding.code, finding.line) == ("dsn", 6) and "must be a URL such as" in finding.message


def test_other_formats_are_refused(folder, write):
    write(old="format: rows", new="format: dms_csv")
    assert any("the result of a query can only have the format 'rows'" in str(finding) for finding in folder.findings())


@pytest.mark.parametrize(
    ("table", "warned"),
    [
        (KEYS, True),
        (KEYS + "    deletes: ignore\n", False),
        (KEYS + "    apply_as_deletes: gone = 1\n", False),
        (KEYS + "    policy: append\n", False),
        (KEYS + "    policy: scd2\n", True),
    ],
)
def test_missing_deletes_are_a_warning(folder, write, table, warned):
    write(table=table)
    found = [w for w in folder.load().warnings if w.code == "no_deletes"]
    assert [(w.line, "it does not see deleted rows" in w.message) for w in found] == ([(3, True)] if warned else [])
