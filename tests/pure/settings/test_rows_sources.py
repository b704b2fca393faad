"""Sources whose records are rows: their keys, and what is passed to the adapters."""

from __future__ import annotations

import pytest

from replicator.wiring import adapters

ROWS = """\
  recorded:
    format: rows
    transport: delta
    path: ./lake/customers
    changes: feed
"""
OTHER = "  recorded:\n    format: debezium_json\n    transport: archive\n    path: ./archive\n"
TABLE = "  - match: audit.log\n    source: recorded\n    policy: append\n"


@pytest.fixture
def rows(folder):
    """Puts `said` behind the keys of the source of rows; the lines of what was said."""

    def change(said: str = "", source: str = ROWS, table: str = TABLE) -> list[int]:
        text = folder.file.read_text()
        added = "".join(f"    {line}\n" for line in said.split("\n") if line)
        text = text.replace("    schema: {id: int64, at: timestamptz}\n", "")
        folder.write(text.replace(OTHER, source + added).replace(TABLE, table))
        lines = folder.file.read_text().splitlines()
        return [lines.index(f"    {line}") + 1 for line in said.split("\n") if line]

    return change


def test_options_are_passed_to_source_and_decoder(folder, rows):
    source = ROWS.replace("feed", "appended")
    rows("start_from: latest\noperation_column: op\nsequence_columns: [at]\noperations: {create: I, delete: [3]}", source)
    loaded = folder.load()
    told = loaded.settings.sources["recorded"].model_dump(exclude_none=True)
    assert told == {
        "transport": "delta",
        "format": "rows",
        "operations": {"create": ["I"], "delete": ["3"]},
        "path": str(folder.root / "lake/customers"),
        "changes": "appended",
        "start_from": "latest",
        "operation_column": "op",
        "sequence_columns": ["at"],
    }
    decoder = adapters.build_decoder(loaded, "recorded")
    assert decoder._options.operation_of == {"I": "c", "3": "d"} and decoder._options.sequence_columns == ("at",)
    assert type(adapters.build_source(loaded, "recorded")).__name__ == "RowsSource"


WRONG = [
    ("topics: [a]", "inapplicable", "means nothing with format 'rows'"),
    ("table: main.shop.customers", "contradiction", "has both 'path' and 'table'"),
    ("operation_column: op", "contradiction", "the feed says that itself"),
    ("operations: {create: [I]}", "contradiction", "the feed says that itself"),
    ("start_from: 2024-01-01", "unknown_value", "start_from"),
    ("start_from: now", "unknown_value", "start_from"),
    ("sequence_columns: []", "type", "must not be empty"),
    ("sequence_columns: [a, b, c, d, e]", "type", "sequence_columns"),
]


@pytest.mark.parametrize(("said", "code", "sentence"), WRONG)
def test_invalid_options_have_their_line(folder, rows, said, code, sentence):
    [line] = rows(said)
    [finding, *_] = [f for f in folder.findings() if f.code == code]
    assert finding.line == line and sentence in finding.message, str(finding)


@pytest.mark.parametrize("said", ["operation_column: op", "sequence_columns: [a]", "operations: {create: [I]}"])
@pytest.mark.parametrize("transport", ["archive", "delta"])
def test_other_formats_refuse_keys_of_rows(folder, rows, said, transport):
    [line] = rows(said, OTHER.replace("archive", transport, 1))
    finding = folder.only()
    assert (finding.code, finding.line) == ("inapplicable", line)


@pytest.mark.parametrize("said", ["changes: feed", "start_from: latest", "table: a.b"])
def test_event_log_sources_refuse_keys_of_tables(folder, rows, said):
    [line] = rows(said, OTHER.replace("archive", "delta", 1))
    finding = folder.only()
    assert (finding.code, finding.line) == ("inapplicable", line)


def test_table_source_needs_a_path(folder, rows):
    rows(source=ROWS.replace("    path: ./lake/customers\n", ""))
    assert folder.only().code == "missing" and "'path'" in folder.only().message
    folder.write(folder.file.read_text().replace("format: rows", "format: debezium_json").replace("    changes: feed\n", ""))
    assert folder.only().code == "missing" and "'path'" in folder.only().message


def test_catalog_table_needs_spark(folder, rows):
    [line] = rows("table: main.shop.customers", ROWS.replace("    path: ./lake/customers\n", ""))
    assert (folder.only().code, folder.only().line) == ("engine", line)
    loaded = folder.load(overrides=["engine=spark"])
    assert adapters.list_options(loaded.settings.sources["recorded"])["table"] == "main.shop.customers"


def test_rows_need_configured_keys(folder, rows):
    rows(table=TABLE.replace("    policy: append\n", ""))
    finding = folder.only()
    assert finding.code == "missing" and "keys: [...]" in finding.suggestion
    rows_table = TABLE.replace("    policy: append\n", "    keys: [id]\n")
    folder.write(folder.file.read_text().replace(TABLE.replace("    policy: append\n", ""), rows_table))
    assert folder.load().settings.tables


def test_table_source_refuses_tombstones(folder, rows):
    rows(table=TABLE + "    tombstones: delete\n")
    finding = folder.only()
    assert (
        finding.code == "inapplicable" and folder.file.read_text().splitlines()[finding.line - 1] == "    tombstones: delete"
    )


def test_table_source_refuses_declared_types(folder, rows):
    rows(table=TABLE + "    schema: {id: string}\n")
    finding = folder.only()
    assert finding.code == "inapplicable" and "the types of its columns" in str(finding)
    assert "schema" in folder.file.read_text().splitlines()[finding.line - 1]


SNAPSHOTS = "  recorded:\n    format: rows\n    transport: snapshots\n    path: ./exports/log\n"
OF_LOG = "  - match: log\n    source: recorded\n    policy: append\n    keys: [id]\n"


def test_key_and_state_are_passed_to_a_snapshot_source(folder, rows):
    rows("allow_empty: true", SNAPSHOTS, OF_LOG)
    loaded = folder.load()
    told = adapters.list_options(loaded.settings.sources["recorded"])
    assert told == {"path": str(folder.root / "exports" / "log"), "allow_empty": True}
    state = str(folder.root / "state" / loaded.settings.pipeline / "kept" / "recorded")
    assert adapters.list_kept_options(loaded, "recorded") == {"keys": ("id",), "state": state}
    assert adapters.build_decoder(loaded, "recorded")._options.sequence_columns == ("_snapshot",)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("operation_column: op", "inapplicable"),
        ("sequence_columns: [at]", "inapplicable"),
        ("operations: {create: I}", "inapplicable"),
        ("changes: feed", "unknown_key"),
        ("allow_empty: often", "type"),
    ],
)
def test_snapshot_source_refuses_other_keys(folder, rows, said, code):
    [line] = rows(said, SNAPSHOTS, OF_LOG)
    assert [(f.code, f.line) for f in folder.findings()] == [(code, line)]


def test_snapshot_source_needs_keys_with_append_too(folder, rows):
    rows("", SNAPSHOTS, OF_LOG.replace("    keys: [id]\n", ""))
    assert "write 'keys: [...]' in it" in str(folder.only())


def test_snapshot_source_refuses_declared_types(folder, rows):
    rows("", SNAPSHOTS, OF_LOG + "    schema: {id: int64}\n")
    assert "rows of snapshots have the types of its columns" in str(folder.only())


def test_snapshot_source_refuses_other_formats(folder, rows):
    rows("", SNAPSHOTS, OF_LOG)
    folder.write(folder.file.read_text().replace("format: rows", "format: dms_csv"))
    assert any("snapshots can only have the format 'rows'" in str(finding) for finding in folder.findings())


ASKED = """\
  recorded:
    format: rows
    transport: snapshots
    dsn: postgresql://shop:hunter2@db/shop
    table: audit.log
"""
OF_ASKED = OF_LOG.replace("match: log", "match: audit.log")


def test_snapshots_of_a_database(folder, rows):
    rows("every: 2 minutes\nquery: SELECT 1 AS id", ASKED, OF_ASKED)
    loaded = folder.load()
    told = adapters.make_check_options(loaded, "recorded")
    asked = {"dsn": "postgresql://shop:hunter2@db/shop", "table": "audit.log", "query": "SELECT 1 AS id"}
    assert told.items() >= {**asked, "every": "2 minutes", "allow_empty": False, "keys": ("id",)}.items()
    assert "hunter2" not in repr(loaded.settings) and "hunter2" not in str(loaded.to_redacted())
    assert type(adapters.build_source(loaded, "recorded")).__name__ == "SnapshotsSource"


@pytest.mark.parametrize(
    ("said", "code", "sentence"),
    [
        ("path: ./exports/log", "contradiction", "has both 'path' and 'dsn'"),
        ("every: often", "duration", "must be a time such as 30 seconds"),
        ("query: ''", "type", "must not be empty"),
    ],
)
def test_invalid_options_of_the_database_are_refused(folder, rows, said, code, sentence):
    [line] = rows(said, ASKED, OF_ASKED)
    finding = folder.only()
    assert (finding.code, finding.line) == (code, line) and sentence in finding.message


@pytest.mark.parametrize("said", ["table: log", "query: SELECT 1 AS id", "every: 5 minutes"])
def test_snapshots_of_files_refuse_database_keys(folder, rows, said):
    [line] = rows(said, SNAPSHOTS, OF_LOG)
    finding = folder.only()
    assert (finding.code, finding.line) == ("inapplicable", line) and "without 'dsn'" in finding.message


@pytest.mark.parametrize(("lacks", "of"), [("    table: audit.log\n", "'table'"), ("    path: ./exports/log\n", "'path'")])
def test_snapshot_source_needs_a_location(folder, rows, lacks, of):
    source = ASKED if "table" in lacks else SNAPSHOTS
    rows("", source.replace(lacks, ""), OF_ASKED)
    finding = folder.only()
    assert finding.code == "missing" and of in finding.message and "table" in finding.suggestion


OF_TEXT = OF_LOG + "    schema: {id: int64, at: timestamptz}\n"


def test_csv_needs_declared_columns(folder, rows):
    rows("files: csv\ncsv: {header: true, delimiter: ;}", SNAPSHOTS, OF_TEXT)
    loaded = folder.load()
    told = loaded.settings.sources["recorded"]
    assert told.files == "csv" and told.csv.delimiter == ";"
    assert adapters.list_kept_options(loaded, "recorded")["schema"] == {"id": "int64", "at": "timestamptz"}
    assert adapters.build_source(loaded, "recorded") and adapters.build_decoder(loaded, "recorded")


@pytest.mark.parametrize(
    ("said", "table", "problem"),
    [
        ("files: jsonl", OF_LOG, ("missing", "its snapshots are text, so its columns are unknown")),
        ("files: csv", OF_TEXT, ("missing", "it is unknown if its files have a header")),
        ("files: csv\ncsv: {header: true, unsent_value: x}", OF_TEXT, ("inapplicable", "'unsent_value'")),
        ("files: jsonl\ncsv: {header: true}", OF_TEXT, ("inapplicable", "key 'csv'")),
        ("csv: {header: true}", OF_LOG, ("inapplicable", "key 'csv'")),
        ("files: parquet", OF_TEXT, ("inapplicable", "rows of snapshots have the types of its columns")),
        ("files: xml", OF_LOG, ("unknown_value", "files")),
    ],
)
def test_invalid_csv_options_are_refused(folder, rows, said, table, problem):
    rows(said, SNAPSHOTS, table)
    finding = folder.only()
    assert (finding.code, problem[1] in str(finding)) == (problem[0], True)


def test_database_source_refuses_files(folder, rows):
    rows("files: csv\ncsv: {header: true}", ASKED, OF_ASKED + "    schema: {id: int64}\n")
    assert "has both 'files' and 'dsn'" in str(folder.findings()[0])
