"""Sources of DMS files: options, and what is passed to the adapters."""

from __future__ import annotations

import pyarrow as pa
import pytest

from replicator.domain.change import RAW
from replicator.wiring import adapters

TABLE = """\
  - match: shop.users
    source: dms
    keys: [id]
    schema: {id: int64, name: string}
    to: [{sink: lake}]
"""


def dms(folder, more="", transport="files"):
    """The config with a source of files, and a table of it; the line where `more` begins."""
    text = folder.file.read_text()
    source = f"  dms:\n    format: dms_csv\n    transport: {transport}\n    path: ./bucket\n"
    text = text.replace("sources:\n", f"sources:\n{source}{more}", 1)
    folder.write(text.replace("tables:\n", f"tables:\n{TABLE}", 1))


def test_settings_are_passed_to_transport_and_decoder(folder):
    dms(folder, '    csv: {header: true, quote: "\'", null_value: "NULL"}\n    operations: {create: INSERT}\n')
    loaded = folder.load()
    source, decoder = adapters.build_source(loaded, "dms"), adapters.build_decoder(loaded, "dms")
    source.close()
    record = {"topic": "shop.users", "partition": 0, "offset": 1, "value": b"INSERT,'1',NULL"}
    raw = pa.Table.from_pylist([record | {"headers": [{"name": "dms.columns", "value": b"Op,id,name"}]}], RAW)
    route = decoder.route(raw).to_pylist()[0]
    (row,) = decoder.decode(raw, decoder.learn(raw, route["table"], route["fingerprint"])).to_pylist()
    assert (row["_op"], row["id"], row["name"], row["_error"]) == ("c", 1, None, None)


@pytest.mark.parametrize(
    ("more", "code", "sentence"),
    [
        ("    csv: {heading: true}\n", "unknown_key", "unknown key 'heading'"),
        ("    csv: {delimiter: ';;'}\n", "value", "delimiter must be one ASCII character"),
        ("    csv: true\n", "type", "csv"),
        ("    sequence_columns: [a]\n", "inapplicable", "means nothing with format 'dms_csv'"),
    ],
)
def test_invalid_options_are_refused(folder, more, code, sentence):
    dms(folder, more)
    finding = folder.only()
    assert finding.code == code and sentence in finding.message


def test_csv_with_another_format_is_refused(folder):
    topics = "    bootstrap_servers: "
    folder.write(folder.file.read_text().replace(topics, f"    csv: {{header: true}}\n{topics}", 1))
    finding = folder.only()
    assert finding.code == "inapplicable" and "means nothing with format 'debezium_json'" in finding.message


def test_files_have_a_known_format(folder):
    dms(folder)
    folder.write(folder.file.read_text().replace("format: dms_csv", "format: canal_json"))
    assert any(
        "files are read as 'dms_csv', 'dms_parquet' or 'rows' alone" in finding.message for finding in folder.findings()
    )


@pytest.mark.parametrize("header", [True, False])
def test_columns_need_a_header_or_a_declaration(folder, header):
    dms(folder, "    csv: {header: true}\n" if header else "")
    folder.write(folder.file.read_text().replace("    schema: {id: int64, name: string}\n", ""))
    if header:
        assert folder.load().settings.sources["dms"].csv.header
        return
    finding = folder.only()
    assert finding.code == "missing" and "csv: {header: true}" in finding.suggestion


def test_parquet(folder):
    """Transport and decoder get the option; the files have the types."""
    dms(folder, "    operation_column: action\n")
    text = folder.file.read_text().replace("format: dms_csv", "format: dms_parquet")
    folder.write(text)
    finding = folder.only()
    assert finding.code == "inapplicable" and "rows of Parquet files have the types of its columns" in finding.message
    folder.write(text.replace("    schema: {id: int64, name: string}\n", ""))
    loaded = folder.load()
    adapters.build_source(loaded, "dms").close()
    assert adapters.build_decoder(loaded, "dms")._options.operation_column == "action"


def test_durations_are_passed_in_seconds(folder):
    dms(folder, "    settle: 1 minute\n    look_every: 500 milliseconds\n")
    told = folder.load().settings.sources["dms"]
    assert (told.settle_seconds, told.look_seconds) == (60.0, 0.5)
