"""Full exports in CSV and JSON Lines: the same result as in Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import re
import shutil
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.exported_records import DECLARED, Row, make_random_snapshots, write_parquet_snapshot, write_text_snapshot

from adapters.decoders.common.row_files import CsvDialect
from adapters.sources.snapshot_diff import file_snapshots
from adapters.sources.snapshot_diff.file_snapshots import CsvFormat, JsonLinesFormat, find_readers
from adapters.sources.snapshot_diff.source import SnapshotsCheck, SnapshotsSource
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Retryable
from replicator.domain.position import Position

EXAMPLES = int(os.environ.get("REPLICATOR_EXAMPLES", "8"))
A, B = (1, "a", "x", 1.5), (2, "a", None, 0.0)
CSV = {"files": "csv", "csv": {"header": True}, "schema": DECLARED}
JSONL = {"files": "jsonl", "schema": DECLARED}
OF_SUFFIX = {".csv": CSV, ".csv.gz": CSV, ".jsonl": JSONL, ".jsonl.gz": JSONL}


def read(folder: Path, **options: Any) -> list[str]:
    """All records there are, as text."""
    given = {"path": str(folder / "items"), "state": str(folder / "state"), "keys": ("id", "Part"), "allow_empty": True}
    rows: list[str] = []
    one = SnapshotsSource({**given, **options})
    stop = threading.Event()
    one.run(Position(), lambda batch: rows.extend(batch.frame["value"].to_pylist()), stop, once=True)
    told = [json.loads(row)["payload"] for row in rows]
    return sorted(json.dumps([row.get(n) for n in ("_snapshot", "_change", *DECLARED)]) for row in told)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(EXAMPLES))
@pytest.mark.parametrize("suffix", OF_SUFFIX)
def test_text_gives_the_same_journal_as_parquet(tmp_path, suffix, seed):
    """For files and folders, wherever runs end."""
    rng = random.Random(seed)
    for version, rows in enumerate(make_random_snapshots(rng, 5)):
        write_parquet_snapshot(tmp_path / "parquet", version, rows)
        if rng.random() < 0.5:
            write_text_snapshot(tmp_path / "text", f"{version}{suffix}", rows)
        else:
            in_parts(tmp_path / "text" / "items" / f"v{version}", rows, suffix)
        if rng.random() < 0.5:
            read(tmp_path / "text", **OF_SUFFIX[suffix])
    assert read(tmp_path / "text", **OF_SUFFIX[suffix]) == read(tmp_path / "parquet")


def in_parts(folder: Path, rows: list[Row], suffix: str) -> None:
    """A folder of two files that were written just now, which says that it is whole."""
    folder.mkdir(parents=True)
    for number in range(2):
        shutil.move(write_text_snapshot(folder, f"part{suffix}", rows[number::2], age=0), folder / f"part-{number}{suffix}")
    (folder / "items").rmdir()
    time.sleep(0.05)  # Files of one tick of the clock do not say which was last.
    (folder / "_SUCCESS").touch()


@pytest.mark.slow
def test_file_is_read_when_it_is_stable(tmp_path, monkeypatch):
    monkeypatch.setattr(file_snapshots, "SETTLED_SECONDS", 3.0)
    given = {"path": str(tmp_path / "items"), "state": str(tmp_path / "state"), "keys": ("id", "Part"), **CSV}
    write_text_snapshot(tmp_path, "1.csv", [A], age=0)
    with pytest.raises(Retryable, match="is still being written"):
        SnapshotsSource(given).start()
    time.sleep(3)
    assert len(read(tmp_path, **CSV)) == 1
    write_text_snapshot(tmp_path, "2.csv", [A, B], age=1)
    began = time.monotonic()
    assert len(read(tmp_path, **CSV)) == 2, "a run until caught up waits for it"
    assert time.monotonic() - began > 1


def test_folder_with_a_success_marker_is_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(file_snapshots, "SETTLED_SECONDS", 600.0)
    in_parts(tmp_path / "items" / "v1", [A, B], ".csv")
    began = time.monotonic()
    assert len(read(tmp_path, **CSV)) == 2
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("suffix", [".csv", ".jsonl.gz"])
def test_byte_order_mark_is_skipped(tmp_path, suffix):
    file = write_text_snapshot(tmp_path, f"1{suffix}", [A, B])
    mark = b"\xef\xbb\xbf"
    text = gzip.compress(mark + gzip.decompress(file.read_bytes())) if suffix.endswith(".gz") else mark + file.read_bytes()
    file.write_bytes(text)
    os.utime(file, (0, 0))
    assert len(read(tmp_path, **OF_SUFFIX[suffix])) == 2


@pytest.mark.parametrize("dialect", [{}, {"escape": "\\"}, {"quote": "none"}])
def test_accepted_csv_equals_that_of_a_strict_reader(dialect):
    """Any text is refused, or both CSV readers find the same values in the same rows."""
    form = CsvFormat(find_readers({"a": "string", "b": "string"}, "items"), CsvDialect(null_value="NULL", **dialect))
    rng, agreed = random.Random(3), 0
    for _ in range(100 * EXAMPLES):
        text = "".join(rng.choice('x,,"\n"\\ \r') for _ in range(rng.randrange(1, 16)))
        try:
            rows = [list(row.values()) for row in form.parse_rows(text.encode(), Path("1.csv")).to_pylist()]
        except DataLoss:
            continue
        strictly = csv.reader(io.StringIO(text, newline=""), **form._strict_options())
        assert rows == [row for row in strictly if row], text
        agreed += 1
    assert agreed > 5 * EXAMPLES


def test_folder_without_exports(tmp_path):
    (tmp_path / "items").mkdir()
    write_parquet_snapshot(tmp_path, 1, [A])
    with pytest.raises(EnvironmentProblem, match="no whole snapshot"):
        read(tmp_path, **CSV)


def test_file_changed_during_the_read_stops_the_source(tmp_path, monkeypatch):
    file = write_text_snapshot(tmp_path, "1.csv", [A])
    unharmed = CsvFormat.parse_rows

    def rows(self: CsvFormat, text: bytes, of: Path) -> pa.Table:
        with file.open("ab") as stream:
            stream.write(b'\n7,"b",,')
        return unharmed(self, text, of)

    monkeypatch.setattr(CsvFormat, "parse_rows", rows)
    with pytest.raises(DataLoss, match="was written to while it was read"):
        read(tmp_path, **CSV)


HEADER = b"id,Part,name,price\n"
BROKEN = [
    (".csv", HEADER + b"1,a,x,1\n2,a,secret,dear\n", "row 2: column 'price' holds"),
    (".csv", HEADER + b"1,a,x,1\n2,a,x\n", "row 2 has 3 columns, expected: 4"),
    (".csv", HEADER + b"1,a,x,1\n\n2,a,x,1,1\n", "row 2 has 5 columns, expected: 4"),
    (".csv", HEADER + b'1,a,"secret,1\n2,a,x,1\n', "row 1 has quotes that do not stand around whole values"),
    (".csv", HEADER + b'1,a,"secret\n2,a,"x,1\n3,a,"x",1\n', "row 1 has quotes that do not stand around whole values"),
    (".csv", HEADER + b'1,a,"secret"x,1\n', "row 1 has quotes that do not stand around whole values"),
    (".csv", b"id,Part,name\n1,a,x\n", "lacks the column 'price'"),
    (".csv", b"id,Part,name,price,price\n1,a,x,1,2\n", "has two columns 'price'"),
    (".csv", b"", "has no header"),
    (".csv", b"\n\r\n", "has no header"),
    (".csv", HEADER + b"1,a,\xff,1\n", "holds bytes that are not UTF-8"),
    (".csv", HEADER + b"9223372036854775808,a,x,1\n", "row 1: column 'id' holds a value that its type cannot hold"),
    (".csv.gz", b"\x1f\x8b\x08\x00\x00", "is not a whole gzip file"),
    (".jsonl", b'{"id": 1, "Part": "a"}\n{"id": 2, "Part": "a", "price": "secret"}', "row 2: column 'price' holds text"),
    (".jsonl", b'{"id": 1, "Part": "a"}\n\n{"id": "secret", "Part": "a"}', "row 2: a value has another type"),
    (".jsonl", b'{"id": 1, "Part": "a"}\n{"id": 2, "Part": "secr', "row 2: the record is not JSON"),
    (".jsonl", b"[1]", "row 1: a value has another type"),
    (".jsonl", b'{"id": 1.5, "Part": "a"}', "at `$.id`"),
    (".jsonl.gz", b"secret", "is not a whole gzip file"),
]


@pytest.mark.parametrize(("suffix", "text", "sentence"), BROKEN)
def test_unconvertible_value_stops_the_source_before_any_write(tmp_path, suffix, text, sentence):
    write_text_snapshot(tmp_path, f"1{suffix}", [A])
    assert len(read(tmp_path, **OF_SUFFIX[suffix])) == 1
    before = (tmp_path / "state" / "taken.json").read_bytes()
    file = write_text_snapshot(tmp_path, f"2{suffix}", [])
    file.write_bytes(text)
    os.utime(file, (0, 0))
    with pytest.raises(DataLoss, match=re.escape(sentence)) as caught:
        read(tmp_path, **OF_SUFFIX[suffix])
    assert str(file) in caught.value.sentence and "secret" not in str(caught.value) and "schema" in caught.value.next_step
    assert (tmp_path / "state" / "taken.json").read_bytes() == before
    file.unlink()
    assert len(read(tmp_path, **OF_SUFFIX[suffix])) == 1


@pytest.mark.parametrize("suffix", OF_SUFFIX)
def test_file_larger_than_memory_is_not_unpacked(tmp_path, suffix):
    file = write_text_snapshot(tmp_path, f"1{suffix}", [A])
    text = b"a" * 30_000_000
    file.write_bytes(gzip.compress(text, 1) if suffix.endswith(".gz") else text)
    os.utime(file, (0, 0))
    del text
    tracemalloc.start()
    try:
        with pytest.raises(ConfigProblem, match=r"more than 1000000 bytes once it is unpacked \(limits.memory\)"):
            read(tmp_path, memory=1_000_000, **OF_SUFFIX[suffix])
        assert tracemalloc.get_traced_memory()[1] < 15_000_000
    finally:
        tracemalloc.stop()


TYPES = {"id": "int64", "name": "string", "at": "timestamp[us, UTC]", "cost": "decimal(9,2)", "yes": "bool", "day": "date"}


@pytest.mark.parametrize(
    ("text", "dialect", "rows"),
    [
        ('name,id\n"a,\nb",1\n"",2\n,3\n5" pipe,4', {"header": True}, [(1, "a,\nb"), (2, ""), (3, None), (4, '5" pipe')]),
        ("id,name,more\r\n1,x,y\r\n", {"header": True}, [(1, "x")]),
        ('1,x\n"2",', {}, [(1, "x"), (2, None)]),
        ("1,x\n2,\n", {}, [(1, "x"), (2, None)]),
        ("1;x\\;y\n2;NIL\n", {"delimiter": ";", "escape": "\\", "null_value": "NIL"}, [(1, "x;y"), (2, None)]),
        ('1|"x"\n', {"delimiter": "|", "quote": "none"}, [(1, '"x"')]),
        ("", {}, []),
        ("id,name\n", {"header": True}, []),
        ("\n\r\n\nid,name\n\n1,x\n", {"header": True}, [(1, "x")]),
        ("\r\rid,name\r1,x", {"header": True}, [(1, "x")]),
        ("\n\n1,x\n", {}, [(1, "x")]),
    ],
)
def test_csv_dialects(text, dialect, rows):
    form = CsvFormat(find_readers({"id": "int64", "name": "string"}, "items"), CsvDialect(**dialect))
    read_ = form.parse_rows(text.encode(), Path("1.csv"))
    assert [tuple(row.values()) for row in read_.to_pylist()] == rows


def test_csv_and_json_have_values_of_every_type():
    nodes = find_readers(TYPES, "items")
    of_csv = CsvFormat(nodes, CsvDialect()).parse_rows(
        b"1,x,2024-01-05T10:11:12.5Z,1.5,true,2024-01-05\n2,,,,,", Path("1.csv")
    )
    line = b'{"id":1,"name":"x","at":"2024-01-05T10:11:12.5Z","cost":"1.50","yes":true,"day":"2024-01-05"}\n{"id":2}'
    assert of_csv.equals(JsonLinesFormat(nodes).parse_rows(line, Path("1.jsonl")))
    assert of_csv.schema.field("cost").type == pa.decimal128(9, 2) and of_csv["name"].to_pylist() == ["x", None]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({**CSV, "schema": {}}, "The columns of items are unknown"),
        ({**CSV, "schema": {"id": "number"}}, "Column 'id' in 'schema' of table items: 'number' is no type"),
        ({**CSV, "schema": {"id": "list<int64>"}}, "which CSV does not hold"),
    ],
)
def test_invalid_declarations_are_refused(tmp_path, options, sentence):
    with pytest.raises(ConfigProblem, match=sentence):
        read(tmp_path, **options)


def test_doctor_checks_text_files(tmp_path):
    write_text_snapshot(tmp_path, "3.csv.gz", [A])
    (said,) = SnapshotsCheck("source", {"path": str(tmp_path / "items"), "files": "csv"}).diagnose()
    assert (said.severity, said.sentence) == ("ok", "items has 1 snapshot; the newest is version 3.")
