"""What a source of recorded topics may say of its files."""

from __future__ import annotations

import pytest

from replicator.wiring import adapters

ARCHIVE = "    transport: archive\n"


def add(folder, more: str, form: str = "debezium_json") -> None:
    text = folder.file.read_text().replace(ARCHIVE, ARCHIVE + more, 1)
    folder.write(text.replace("format: debezium_json\n    transport: archive", f"format: {form}\n    transport: archive"))


@pytest.mark.parametrize(
    ("more", "name", "settle"),
    [
        ("", "ArchiveSource", None),
        ("    files: recorded\n", "ArchiveSource", None),
        ("    files: connect\n", "ConnectFilesSource", 10.0),
        ("    files: connect\n    settle: 1 minute\n    mode: batch\n", "ConnectFilesSource", 60.0),
    ],
)
def test_which_files_are_read(folder, more, name, settle):
    add(folder, more)
    source = adapters.source(folder.load(), "recorded")
    assert (type(source).__name__, source._options.settle) == (name, settle)


@pytest.mark.parametrize(
    ("more", "form", "code", "sentence"),
    [
        ("    files: connected\n", "debezium_json", "unknown_value", "files"),
        ("    settle: 1 minute\n", "debezium_json", "inapplicable", "means nothing for recorded topics"),
        ("    files: connect\n", "dts_avro", "inapplicable", "files of sinks hold JSON, lines of text, Avro or Parquet"),
    ],
)
def test_mistakes(folder, more, form, code, sentence):
    add(folder, more, form)
    found = [f for f in folder.findings() if f.code == code]
    assert found and sentence in str(found[0])
