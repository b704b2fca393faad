"""Options of archives of recorded topics."""

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
        ("    files: connect\n", "ConnectFilesSource", None),
        ("    files: lines\n    topic: cdc.public.orders\n", "LineFileSource", None),
        ("    files: connect\n    settle: 1 minute\n    mode: batch\n", "ConnectFilesSource", 60.0),
    ],
)
def test_options_of_the_files(folder, more, name, settle):
    add(folder, more)
    source = adapters.build_source(folder.load(), "recorded")
    assert (type(source).__name__, source._options.settle_seconds) == (name, settle)


@pytest.mark.parametrize(
    ("more", "form", "code", "sentence"),
    [
        ("    files: connected\n", "debezium_json", "unknown_value", "files"),
        ("    settle: 1 minute\n", "debezium_json", "inapplicable", "means nothing for recorded topics"),
        ("    files: lines\n", "debezium_json", "missing", "missing key 'topic'"),
        ("    files: lines\n    topic: t\n    settle: 1 minute\n", "debezium_json", "inapplicable", "while they grow"),
        ("    topic: t\n", "debezium_json", "inapplicable", "means nothing without 'files: lines'"),
        ("    files: lines\n    topic: t\n", "debezium_avro", "inapplicable", "no records of"),
        ("    files: connect\n", "dts_avro", "inapplicable", "files of sinks hold JSON, lines of text, Avro or Parquet"),
    ],
)
def test_invalid_options_are_refused(folder, more, form, code, sentence):
    add(folder, more, form)
    found = [f for f in folder.findings() if f.code == code]
    assert found and sentence in str(found[0])


def test_growing_file_is_refused_in_an_object_store(folder):
    text = folder.file.read_text()
    path = next(line for line in text[text.index(ARCHIVE) :].splitlines() if line.strip().startswith("path:"))
    stored = f"{ARCHIVE}    files: lines\n    topic: t\n"
    folder.write(text.replace(ARCHIVE, stored, 1).replace(path, "    path: s3://bucket/topics", 1))
    assert "objects do not grow" in " ".join(str(f) for f in folder.findings() if f.code == "inapplicable")
