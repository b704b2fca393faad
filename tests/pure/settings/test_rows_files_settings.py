"""Sources of rows in files, and of records from other programs."""

from __future__ import annotations

import pytest

from replicator.wiring import adapters

TABLE = """\
  - match: users
    source: feed
    keys: [id]
    schema: {id: int64, name: string}
    to: [{sink: lake}]
"""
CSV = "    files: csv\n    csv: {header: true}\n"


def feed(folder, more, transport="files", place="    path: ./feed\n", table=TABLE):
    text = folder.file.read_text()
    source = f"  feed:\n    format: rows\n    transport: {transport}\n{place}{more}"
    text = text.replace("sources:\n", f"sources:\n{source}", 1)
    folder.write(text.replace("tables:\n", f"tables:\n{table}", 1))


@pytest.mark.parametrize(
    ("more", "inserts_only", "sequence", "text_values"),
    [
        (CSV, True, (), True),
        ("    files: jsonl\n    operation_column: op\n", False, (), False),
        (CSV + "    operation_column: op\n    sequence_columns: [n]\n", False, ("n",), True),
    ],
)
def test_options_passed_to_the_decoder(folder, more, inserts_only, sequence, text_values):
    feed(folder, more)
    loaded = folder.load()
    options = adapters.build_decoder(loaded, "feed")._options
    assert (options.inserts_only, options.sequence_columns, options.text_values) == (inserts_only, sequence, text_values)
    source = adapters.build_source(loaded, "feed")
    assert type(source).__name__ == "RowsFilesSource"


def test_parquet_refuses_declared_types(folder):
    feed(folder, "    files: parquet\n")
    finding = folder.only()
    assert finding.code == "inapplicable" and "rows of Parquet files have the types of its columns" in finding.message
    folder.write(folder.file.read_text().replace("    schema: {id: int64, name: string}\n", ""))
    assert not adapters.build_decoder(folder.load(), "feed")._options.text_values


@pytest.mark.parametrize(
    ("transport", "place"),
    [("archive", "    path: ./archive\n"), ("kafka", "    bootstrap_servers: b:9092\n    topics: [users]\n")],
)
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", (True, (), "delete")),
        ("    sequence_columns: [n]\n", (True, ("n",), "ignore")),
        ("    operation_column: op\n", (False, (), "ignore")),
        ("    operation_column: op\n    sequence_columns: [n]\n", (False, ("n",), "ignore")),
    ],
)
def test_records_without_sequence_columns_are_ordered_by_offset(folder, transport, place, more, expected):
    feed(folder, more, transport, place)
    loaded = folder.load()
    options = adapters.build_decoder(loaded, "feed")._options
    assert (options.inserts_only, options.sequence_columns, options.tombstones["users"]) == expected
    # Of lanes too: queries as of a time look there.
    assert [lane.tombstones or "ignore" for lane in loaded.settings.resolve_lanes("users", "feed")] == [expected[-1]]


@pytest.mark.parametrize(
    ("more", "mode", "code"),
    [
        ("", "delete", None),
        ("", "ignore", None),
        ("    operation_column: op\n", "delete", "inapplicable"),
        ("    sequence_columns: [n]\n", "delete", "inapplicable"),
        ("    operations: {create: I}\n", "ignore", "inapplicable"),
    ],
)
def test_tombstones_option_of_tables(folder, more, mode, code):
    table = TABLE.replace("    schema:", f"    tombstones: {mode}\n    schema:")
    feed(folder, more, "archive", "    path: ./archive\n", table=table)
    if code is None:
        assert adapters.build_decoder(folder.load(), "feed")._options.tombstones["users"] == mode
    else:
        assert folder.only().code == code


@pytest.mark.parametrize(
    ("more", "code", "sentence"),
    [
        ("", "missing", "missing key 'files'"),
        ("    files: csv\n", "missing", "columns of rows in CSV are named by a header row"),
        ("    files: csv\n    csv: {header: false}\n", "missing", "columns of rows in CSV are named by a header row"),
        ("    files: csv\n    csv: {header: true, inserts_only: true}\n", "inapplicable", "means nothing for rows"),
        (
            "    files: csv\n    csv: {header: true, delimiter: '\"'}\n",
            "contradiction",
            "'delimiter', 'quote' and 'escape' must differ",
        ),
        ("    files: csv\n    csv: {header: true, unsent_value: ''}\n", "contradiction", "must differ"),
        ("    files: jsonl\n    csv: {header: true}\n", "inapplicable", "means nothing with format 'rows'"),
        ("    files: jsonl\n    operations: {create: I}\n", "inapplicable", "means nothing without 'operation_column'"),
        ("    files: xml\n", "unknown_value", "files"),
    ],
)
def test_invalid_options_are_refused(folder, more, code, sentence):
    feed(folder, more)
    finding = folder.only()
    assert finding.code == code and sentence in finding.message


def test_dms_csv_refuses_files_option(folder):
    feed(folder, "    files: csv\n")
    folder.write(folder.file.read_text().replace("format: rows", "format: dms_csv"))
    finding = folder.only()
    assert finding.code == "inapplicable" and "already names the kind of files" in finding.message


def test_csv_needs_declared_columns(folder):
    feed(folder, CSV, table=TABLE.replace("    schema: {id: int64, name: string}\n", ""))
    finding = folder.only()
    assert finding.code == "missing" and "its files are text" in finding.message
