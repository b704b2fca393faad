"""Names, headers and cells of row files."""

from __future__ import annotations

import csv
import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.rows_folder import WRITTEN, encode_rows, write_closed_file

from adapters.decoders.common.row_files import CsvDialect
from adapters.sources.files import files_check, files_source
from adapters.sources.files.dms import DmsFilesSource
from adapters.sources.files.rows import CsvCellParser, RowsFilesSource, find_table, parse_number
from replicator.domain.change import ERROR_HEADER
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Reject, Retryable
from replicator.domain.position import Position
from replicator.testing.contract import EXAMPLES

ROW = (1 << 30) - 1


@pytest.fixture
def items(tmp_path):
    return tmp_path / "feed" / "items"


def read(folder: Path, files: str = "csv", **csv: Any) -> list[tuple[int, Any]]:
    """Number of the line, and the row or the sentence of its reject."""
    source, found = RowsFilesSource({"path": str(folder), "files": files, "csv": csv}), []

    def take(batch):
        for r in batch.frame.to_pylist():
            headers = {h["name"]: h["value"] for h in r["headers"] or ()}
            said = headers.get(ERROR_HEADER)
            row = Reject.parse(said.decode()).sentence if said else json.loads(r["value"])
            assert r["timestamp"].timestamp() == WRITTEN and r["topic"] == folder.name
            found.append((r["offset"] & ROW, row))

    source.run(Position(), take, threading.Event(), once=True)
    return found


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("employees.csv", 0),
        ("000012.csv", 12),
        ("part-7.jsonl.gz", 7),
        ("v2-part-00003.csv.gz", 3),
        ("2024-01-05.csv", 20240105),
        ("e_20240105T103000Z.jsonl", 1704450600),
        ("202401051030.csv", 1704450600),
        ("8589934591.csv", 8589934591),
    ],
)
def test_file_names(name, number):
    assert parse_number(Path("/feed/items") / name).number == number
    assert find_table(Path("/feed/items") / name) == "items"


@pytest.mark.parametrize("name", ["8589934592.csv", "12345678901.csv", "20241305103000.csv", "1704450600123.csv"])
def test_file_name_with_invalid_digits_is_refused(items, name):
    write_closed_file(items / name, b"a\n1\n")
    with pytest.raises(ConfigProblem, match=rf"{name} ends in digits that are no number"):
        read(items)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("a.csv", "b.csv"),
        ("a-1.csv", "b-1.csv.gz"),
        ("2024-1-31.csv", "2024-02-1.csv"),
        ("20240105.csv", "20240105103000.csv"),
        ("000001.csv", "2024-01-05.csv"),
        ("202401051030.csv", "20240105103100.csv"),
    ],
)
def test_file_names_without_an_order_are_refused(items, one, two):
    write_closed_file(items / one, b"a\n1\n")
    write_closed_file(items.parent / "others" / two, b"a\n1\n")
    assert len(read(items)) == 1
    write_closed_file(items / two, b"a\n1\n")
    with pytest.raises(ConfigProblem, match="do not say which of them comes first"):
        read(items)


def test_files_are_read_by_number_and_others_skipped(items):
    write_closed_file(items / "10.csv", b"a\n3\n")
    write_closed_file(items / "deep" / ".." / "9.csv", b"a\n2\n")
    write_closed_file(items / "first.csv", b"a\n1\n")
    for name in ("_11.csv", ".12.csv", "13.txt", "14.jsonl"):
        write_closed_file(items / name, b"a\n9\n")
    assert read(items) == [(2, {"a": "1"}), (2, {"a": "2"}), (2, {"a": "3"})]


def test_rows_of_csv(items):
    text = b'\xef\xbb\xbfid;"a;b"\r\n1;"x ""y"";\n"\r\n\r\n2;\r\n3;""\r\n4;NULL\n5;"NULL"\n6;?'
    write_closed_file(items / "1.csv", text)
    assert read(items, delimiter=";") == [
        (2, {"id": "1", "a;b": 'x "y";\n'}),
        (4, {"id": "2", "a;b": None}),
        (5, {"id": "3", "a;b": ""}),
        (6, {"id": "4", "a;b": "NULL"}),
        (7, {"id": "5", "a;b": "NULL"}),
        (8, {"id": "6", "a;b": "?"}),
    ]
    dialect = {"delimiter": ";", "null_value": "NULL", "unsent_value": "?"}
    assert [row.get("a;b", "unsent") for _, row in read(items, **dialect)][1:] == ["", "", None, "NULL", "unsent"]


def test_unreadable_rows_are_rejected_alone(items):
    write_closed_file(items / "1.csv", b'a,b\n1\n1,"x"y\n1,\xff\n1,2\n1,2,3\n1,"open\n')
    assert read(items) == [
        (2, "the row has 1 column, expected: 2"),
        (3, "the row has quotes that do not stand around whole values"),
        (4, "the row holds bytes that are not UTF-8"),
        (5, {"a": "1", "b": "2"}),
        (6, "the row has 3 columns, expected: 2"),
        (7, "the row has quotes that do not stand around whole values"),
    ]


@pytest.mark.parametrize("suffix", ["csv.gz", "jsonl.gz", "parquet"])
def test_file_that_is_being_copied_does_not_end_the_source(items, suffix):
    kind, found, stop = suffix.removesuffix(".gz"), [], threading.Event()
    whole = write_closed_file(items / f"1.{suffix}", encode_rows([{"id": "1"}, {"id": "2"}], kind))
    copy = items / f"2.{suffix}"
    copy.write_bytes(whole.read_bytes()[:-9])
    source = RowsFilesSource({"path": str(items), "files": kind})
    start = source.start()
    assert (source.beginning(), source.oldest(), source.losses(source.end(), {})) == (start, start, {})

    def take(batch):
        found.extend(batch.frame["offset"].to_pylist())
        stop.set()

    source.run(start, take, stop, once=False)
    assert len(found) == 2
    copy.write_bytes(whole.read_bytes())
    assert source.end() == Position(dict.fromkeys(start, found[-1] + (1 << 30) + 1))


def test_file_that_is_copied_again_is_no_loss(items):
    """It may hold the records that were read, and is an error once it is stable."""
    whole = write_closed_file(items / "1.parquet", encode_rows([{"id": "1"}], "parquet"))
    end, text = RowsFilesSource({"path": str(items), "files": "parquet"}).end(), whole.read_bytes()
    whole.write_bytes(text[:-9])
    source = RowsFilesSource({"path": str(items), "files": "parquet"})
    with pytest.raises(Retryable, match=r"1.parquet is no whole Parquet file"):
        source.losses(end, {})
    os.utime(whole, (WRITTEN, WRITTEN))
    with pytest.raises(EnvironmentProblem, match=r"1.parquet is no whole Parquet file"):
        source.end()
    whole.write_bytes(text)
    assert (source.losses(end, {}), source.end()) == ({}, end)


@pytest.mark.parametrize("source", [RowsFilesSource, DmsFilesSource])
@pytest.mark.parametrize("text", ["op,id,a\rI,1,x\rI,2,y\r", '"op","id"\r"I","1"\r'])
def test_lines_ending_in_cr_stop_the_source(tmp_path, source, text):
    """Otherwise the whole file would be its header row."""
    write_closed_file(tmp_path / "public" / "t" / "LOAD00000001.csv", text.encode())
    one = source({"path": str(tmp_path), "csv": {"header": True}, **({"files": "csv"} if source is RowsFilesSource else {})})
    with pytest.raises(
        EnvironmentProblem, match=r"header row of .*/t/LOAD00000001.csv contains a carriage return"
    ) as caught:
        one.run(Position(), print, threading.Event(), once=True)
    assert "LF or CR LF" in caught.value.next_step


def test_quoted_column_name_with_a_line_end(items):
    write_closed_file(items / "1.csv", b'"a\r",b\r\n1,2\r\n')
    assert read(items) == [(2, {"a\r": "1", "b": "2"})]


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (b"a,", "its header row has a column without a name"),
        (b"a,a", "its header row names a column twice"),
        (b'"a"b', "its header row cannot be read: the row has quotes that do not stand around whole values"),
    ],
)
def test_invalid_headers_are_rejected(items, header, sentence):
    write_closed_file(items / "1.csv", header + b"\n1,2\n")
    assert read(items) == [(2, sentence)]


def test_json_rows_are_unchanged(items):
    write_closed_file(items / "1.jsonl", b'\xef\xbb\xbf{"a": 1}\r\n\n  {"a": 2}')
    assert read(items, "jsonl") == [(1, {"a": 1}), (3, {"a": 2})]


def test_rows_of_parquet_have_their_types(items):
    rows = pa.table({"id": pa.array([1, 2], pa.int32()), "at": pa.array([0, None], pa.timestamp("ms"))})
    pq.write_table(rows, items.mkdir(parents=True) or items / "_1.parquet")
    write_closed_file(items / "1.parquet", (items / "_1.parquet").read_bytes())
    types = {"id": "int32", "at": "timestamp[us]"}
    payloads = [{"id": 1, "at": "1970-01-01 00:00:00.000000"}, {"id": 2, "at": None}]
    expected = [(n, {"schema": types, "payload": payload}) for n, payload in enumerate(payloads, 1)]
    assert read(items, "parquet") == expected
    pq.write_table(pa.table({"d": pa.array([1], pa.duration("s"))}), items / "_2.parquet")
    write_closed_file(items / "2.parquet", (items / "_2.parquet").read_bytes())
    with pytest.raises(ConfigProblem, match=r"column 'd' of .*2\.parquet is of type duration"):
        read(items, "parquet")


def test_late_or_changed_file_is_data_loss(items):
    write_closed_file(items / "1.csv", b"a\n1\n")
    source, stop = files_source({"path": str(items), "files": "csv", "format": "rows"}), threading.Event()

    def expect_loss(change):
        def take(_):
            change()

        with pytest.raises(DataLoss) as caught:
            source.run(Position(), take, stop, once=False)
        return caught.value.sentence

    write_closed_file(items / "2.csv", b"a\n1\n")
    assert "0.csv appeared after later files of table items" in expect_loss(
        lambda: write_closed_file(items / "0.csv", b"a\n1\n")
    )
    (items / "0.csv").unlink()
    source = files_source({"path": str(items), "files": "csv", "format": "rows"})
    assert "2.csv had 4 bytes when it was read" in expect_loss(lambda: write_closed_file(items / "2.csv", b"a\n1\n2\n"))


def test_growing_file_waits(items):
    write_closed_file(items / "1.csv", b"a\n1\n")
    os.utime(write_closed_file(items / "2.csv", b"a\n2\n"))
    write_closed_file(items / "3.csv", b"a\n3\n")
    write_closed_file(items.parent / "others" / "1.csv", b"a\n1\n")
    source = files_source({"path": str(items.parent), "files": "csv", "format": "rows"})
    assert [file.label for file in source._files(Position())] == ["items/1.csv", "others/1.csv"]


def test_source_class_depends_on_format_and_files(tmp_path):
    assert type(files_source({"path": "x", "format": "dms_csv"})) is DmsFilesSource
    assert type(files_source({"path": "x", "format": "rows", "files": "jsonl"})) is RowsFilesSource
    for files in (None, "avro"):
        with pytest.raises(ConfigProblem, match="files: "):
            files_source({"path": "x", "format": "rows", "files": files})
    write_closed_file(tmp_path / "1.jsonl", b"{}")
    (said,) = files_check("s", {"path": str(tmp_path), "format": "rows", "files": "jsonl"}).diagnose()
    assert (said.severity, said.sentence) == ("ok", f"{tmp_path} has 1 file.")
    write_closed_file(tmp_path / "b-1.jsonl", b"{}")
    (said,) = files_check("s", {"path": str(tmp_path), "format": "rows", "files": "jsonl"}).diagnose()
    assert said.severity == "error" and "which of them comes first" in said.sentence


TEXTS = st.text(st.sampled_from(",;\"\\\n\r'x é"), max_size=6)


@settings(max_examples=min(300, 20 * EXAMPLES))
@given(st.lists(TEXTS, min_size=1, max_size=4), st.sampled_from(",;"), st.sampled_from([None, "\\"]))
@example(['\\"', '"'], ",", "\\")
def test_written_cells_are_read_back(cells, delimiter, escape):
    """As Python's csv writer writes them, with all cells quoted."""
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, escapechar=escape, doublequote=escape is None, quoting=csv.QUOTE_ALL).writerow(
        cells
    )
    row = out.getvalue().removesuffix("\r\n").encode()
    assert CsvCellParser(CsvDialect(delimiter=delimiter, escape=escape))(row) == cells


@given(st.text(st.sampled_from(',"\\ab'), max_size=12), st.sampled_from(['"', None]), st.sampled_from([None, "\\"]))
def test_any_row_is_cells_or_a_reject(text, quote, escape):
    found = CsvCellParser(CsvDialect(quote=quote, escape=escape))(text.encode())
    assert isinstance(found, Reject) or all(cell is None or isinstance(cell, str) for cell in found)
