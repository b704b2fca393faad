"""Names, line ends and partial files of AWS DMS."""

from __future__ import annotations

import gzip
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.dms_folder import set_old_time

from adapters.decoders.dms_csv import DmsCsvDecoder
from adapters.sources.files import files_check
from adapters.sources.files.dms import DmsFilesSource, find_table, parse_name
from adapters.sources.files.file_list import find_files
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem
from replicator.domain.position import Position
from replicator.domain.table import Column, TableSpec

CDC = "20211017-194324349.csv"
TABLE = TableSpec("public.users", tuple(Column(name, pa.string()) for name in "abc"), (), 2)


def put(folder: Path, name: str, text: str | bytes, *, settled: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    if settled:
        set_old_time(folder / name)
    return folder / name


@pytest.fixture
def users(tmp_path):
    return tmp_path / "bucket" / "public" / "users"


def read(folder: Path, start: Position | None = None, **csv: Any) -> list[tuple[str, int, bytes]]:
    """Table, number of the line, and row."""
    source, found = DmsFilesSource({"path": str(folder), "csv": csv}), []

    def take(batch):
        found.extend((r["topic"], r["offset"] & (2**21 - 1), r["value"]) for r in batch.frame.to_pylist())

    source.run(start or Position(), take, threading.Event(), once=True)
    return found


@pytest.mark.parametrize(
    ("name", "kind", "first"),
    [
        ("LOAD00000001.csv", "load", 1 << 32),
        ("LOAD0000000A.csv.gz", "load", 10 << 32),
        ("LOAD001.csv", "load", 1 << 32),
        ("LOAD0FFFFFFF.csv", "load", (2**28 - 1) << 32),
        (CDC, "cdc", 1634499804349 << 21),
        ("20141029-1134010000.csv", "cdc", 1414582441000 << 21),
        ("20050101-000000000.csv", "cdc", 1104537600000 << 21),
    ],
)
def test_file_names(name, kind, first):
    assert (parse_name(Path(name)).kind, parse_name(Path(name)).first) == (kind, first)


def test_full_load_is_before_the_first_change():
    load, change = parse_name(Path("LOAD0FFFFFFF.csv")), parse_name(Path("20050101-000000000.csv"))
    assert load.first + load.most <= change.first


@pytest.mark.parametrize(
    "name", ["users.csv", "LOAD.csv", "LOAD1FFFFFFF.csv", "20211399-194324349.csv", "19991017-194324349.csv", "1-2.csv"]
)
def test_file_of_another_program_stops_the_source(users, name):
    put(users, name, "I,1\n")
    with pytest.raises(ConfigProblem, match=rf"{name} is no file of AWS DMS"):
        read(users)


def test_other_file_extensions_are_skipped(users):
    put(users, "readme.txt", "no rows")
    put(users, CDC, "I,1\n")
    assert [value for *_, value in read(users)] == [b"I,1"]


@pytest.mark.parametrize(
    ("folders", "table"),
    [
        ("public/users", "public.users"),
        ("a/public/users/2021/10/17", "public.users"),
        ("public/users/2021-10-17-19", "public.users"),
    ],
)
def test_table_of_a_folder(tmp_path, folders, table):
    assert find_table(tmp_path / folders / CDC) == table


def test_changes_are_ordered_by_time_in_all_folders(users):
    put(users / "2021" / "10" / "18", "20211018-000000000.csv", "U,1,third\n")
    put(users / "2021" / "10" / "17", CDC, "U,1,second\n")
    put(users, "LOAD0000000A.csv", "1,first b\n")
    put(users, "LOAD00000009.csv", "1,first a\n")
    assert [value for *_, value in read(users.parent)] == [b"1,first a", b"1,first b", b"U,1,second", b"U,1,third"]


def test_two_files_with_one_time_are_refused(users):
    put(users, "20141029-1134010000.csv", "I,1\n")
    put(users / "2014", "20141029-1134010001.csv", "I,2\n")
    with pytest.raises(ConfigProblem, match="are of one table and one time"):
        read(users)
    put(users.parent / "orders", "20141029-1134010000.csv", "I,1\n")
    (users / "2014" / "20141029-1134010001.csv").unlink()
    assert len(read(users.parent)) == 2


def test_rows_with_line_ends_in_quotes(users):
    put(users, CDC, 'I,1,"a\nb"\r\nI,2,"say ""hi""\n"\nI,3,\n\nI,4,x')
    assert read(users) == [
        ("public.users", 1, b'I,1,"a\nb"'),
        ("public.users", 2, b'I,2,"say ""hi""\n"'),
        ("public.users", 3, b"I,3,"),
        ("public.users", 4, b""),
        ("public.users", 5, b"I,4,x"),
    ]


def test_every_line_is_a_row_without_quoting(users):
    put(users, CDC, 'I,1,"a\nI,2,b\n')
    assert [value for *_, value in read(users, quote="none")] == [b'I,1,"a', b"I,2,b"]


def test_every_row_has_its_header(users):
    put(users, CDC, b"\xef\xbb\xbfOp,id\r\nI,1\nI,2\n")
    source, found = DmsFilesSource({"path": str(users), "csv": {"header": True}}), []
    source.run(Position(), lambda batch: found.extend(batch.frame.to_pylist()), threading.Event(), once=True)
    assert [row["value"] for row in found] == [b"I,1", b"I,2"]
    assert {tuple(header["value"] for header in row["headers"]) for row in found} == {(b"cdc", b"Op,id")}
    assert all(str(row["timestamp"]) == "2021-10-17 19:43:24.349000+00:00" for row in found)


def test_byte_order_mark_is_skipped(users):
    put(users, CDC, b"\xef\xbb\xbfI,1\n")
    assert read(users) == [("public.users", 1, b"I,1")]


def follow(folder: Path, act: Callable[[list[bytes]], bool]) -> list[bytes]:
    """What a source that runs delivers; `act` is told it after every batch, and says when to stop."""
    source, found, stop = DmsFilesSource({"path": str(folder)}), [], threading.Event()

    def take(batch):
        found.extend(row["value"] for row in batch.frame.to_pylist())
        if act(found):
            stop.set()

    late = threading.Timer(60, stop.set)
    late.start()
    source.run(Position(), take, stop, once=False)
    late.cancel()
    return found


def test_growing_file_delays_its_table_only(users):
    """Its rows may end anywhere."""
    put(users, "LOAD00000001.csv", "1,a\n2,b\n", settled=False)
    put(users, CDC, "U,1,c\n")
    put(users.parent / "orders", CDC, "I,7\n")

    def act(found):
        if found == [b"I,7"]:
            put(users, "LOAD00000001.csv", "1,a\n2,b\n3,c")
        return len(found) == 5

    assert follow(users.parent, act) == [b"I,7", b"1,a", b"2,b", b"3,c", b"U,1,c"]


@pytest.mark.slow
def test_until_caught_up_waits_for_growing_files(users, monkeypatch):
    monkeypatch.setattr("adapters.sources.files.file_list.SETTLED_SECONDS", 1.5)
    put(users, "LOAD00000001.csv", "1,a\n2,b", settled=False)
    put(users, CDC, "U,1,c\n")
    assert [value for *_, value in read(users)] == [b"1,a", b"2,b", b"U,1,c"]


def test_file_changed_after_the_read_is_data_loss(users):
    put(users, "LOAD00000001.csv", "1,a\n2,b\n")

    def act(found):
        put(users, "LOAD00000001.csv", "1,x\n2,y\n3,z\n")
        return len(found) > 2

    with pytest.raises(DataLoss, match=r"LOAD00000001.csv had 8 bytes when it was read, and has 12 now"):
        follow(users, act)


def test_file_copied_again_is_read_once(users):
    put(users, CDC, "I,1\nI,2")

    def act(found):
        put(users, CDC, "I,1\nI,2")
        put(users, "20211018-000000000.csv", "I,3\n")
        return len(found) == 3

    assert follow(users, act) == [b"I,1", b"I,2", b"I,3"]
    put(users, "20211018-000000000.csv", "I,3\n", settled=False)
    at = DmsFilesSource({"path": str(users)})
    assert not at.losses(at.end(), {})


@pytest.mark.parametrize("name", ["LOAD00000001.csv.gz", "20211017-194324349.csv.gz"])
def test_partial_compressed_file_stops_the_source(users, name):
    whole = gzip.compress(b'I,1,"a\n\nb"\n' + random.Random(1).randbytes(4000).hex().encode())
    put(users, name, whole[:-100])
    put(users, "20221017-194324349.csv", "I,9,z\n")
    with pytest.raises(EnvironmentProblem, match=rf"{name} ends too early"):
        read(users)


@pytest.mark.parametrize(
    ("text", "csv", "rows"),
    [
        ('I,1,5" pipe\nI,2,b\nI,3,6" pipe\n', {}, 3),
        ('I,"a""\nb""",x\nI,2,b\n', {}, 2),
        ('"I","a\n","b\n\n",c\n"I",2,b\n', {}, 2),
        ('I,"a"junk"\nI,2\n', {}, 2),
        ("I,'a\nb',\"\nI,2,b\n", {"quote": "'"}, 2),
        ('I;"a;\nb";c\nI;2;b\n', {"delimiter": ";"}, 2),
        ('I,1,"say \\"hi"\nI,2,b\nI,3,"x \\" \ny"\n', {"escape": "\\"}, 3),
        ('I,1,a\\"\nI,2,"b\\\\"\nI,3,c\n', {"escape": "\\"}, 3),
        ('I,1,"a\nI,2,b\n', {"quote": "none"}, 2),
    ],
)
def test_row_ends(users, text, csv, rows):
    """Source and decoder agree: every record is one row, and together they are the file."""
    put(users, CDC, text)
    source, found = DmsFilesSource({"path": str(users), "csv": csv}), []
    source.run(Position(), lambda batch: found.append(batch.frame), threading.Event(), once=True)
    raw = pa.concat_tables(found)
    values = raw["value"].to_pylist()
    assert b"".join(value + b"\n" for value in values) == text.encode() and len(values) == rows
    spelt = {"csv": csv, "schema": {"public.users": {"a": "string", "b": "string", "c": "string"}}}
    errors = DmsCsvDecoder(spelt).decode(raw, TABLE)["_error"].to_pylist()
    junk = sum(b"junk" in value for value in values)
    assert sum("not one row" in (error or "") for error in errors) == junk, errors


def test_rows_of_files_become_changes(users):
    """The decoder reads operation, order and time from the source's description of a row."""
    put(users, "LOAD0000000A.csv", "1,a\n2,b\n")
    put(users, CDC, "U,2,c\nD,1,\n")
    source, found = DmsFilesSource({"path": str(users)}), []
    source.run(Position(), lambda batch: found.append(batch.frame), threading.Event(), once=True)
    spec = TableSpec("public.users", (Column("a", pa.string()), Column("b", pa.string())), ("a",), 2)
    spelt = {"schema": {"public.users": {"a": "string", "b": "string"}}, "keys": {"public.users": ["a"]}}
    rows = DmsCsvDecoder(spelt).decode(pa.concat_tables(found), spec).to_pylist()
    assert [(r["_op"], r["a"], r["_error"]) for r in rows] == [(o, a, None) for o, a in ("r1", "r2", "u2", "d1")]
    sequences = [(r["_seq_1"], r["_seq_2"]) for r in rows]
    assert sequences == sorted(sequences) and sequences[2] == (1634499804349, 1)
    assert [r["_ts"] and r["_ts"].timestamp() for r in rows] == [None, None, 1634499804.349, 1634499804.349]


@pytest.mark.slow
def test_late_file_is_data_loss(users):
    put(users, "20211017-194324400.csv", "I,2\n")
    put(users, "20211017-194324500.csv", "I,3\n")
    source, found, stop = DmsFilesSource({"path": str(users)}), [], threading.Event()

    def take(batch):
        found.extend(row["value"] for row in batch.frame.to_pylist())
        if found and not batch.records:
            put(users, "20211017-194324450.csv", "I,1\n")

    with pytest.raises(DataLoss, match=r"20211017-194324450.csv appeared after later files of table public.users"):
        source.run(Position(), take, stop, once=False)
    # A run that goes on where another one ended knows what was there when it began.
    again, end = DmsFilesSource({"path": str(users)}), source.end()

    def later(batch):
        put(users, "20211017-194324420.csv", "I,1\n")

    with pytest.raises(DataLoss, match=r"20211017-194324420.csv appeared"):
        again.run(end, later, stop, once=False)


def test_invalid_options_are_refused():
    with pytest.raises(ConfigProblem, match=r"csv\.header"):
        DmsFilesSource({"path": "x", "csv": {"header": "perhaps"}})
    with pytest.raises(ConfigProblem, match="topics"):
        DmsFilesSource({"path": "x", "topics": ["a"]})


def test_doctor_checks_the_folder(users, tmp_path):
    def diagnose(path):
        (found,) = files_check("s", {"path": str(path), "csv": {"header": True}, "positions": {}}).diagnose()
        return found.severity, found.sentence

    assert diagnose(tmp_path / "nowhere")[0] == "error"
    users.mkdir(parents=True)
    assert diagnose(users) == ("warning", f"{users} has no file yet.")
    put(users, CDC, "I,1\n")
    assert diagnose(users)[0] == "ok"
    put(users, "users.csv", "I,1\n")
    assert diagnose(users)[0] == "error" and "is no file of AWS DMS" in diagnose(users)[1]
    with pytest.raises(EnvironmentProblem):
        read(tmp_path / "nowhere")


def test_folders_by_links_and_globs(users, tmp_path):
    put(tmp_path / "elsewhere" / "users", CDC, "I,1\n")
    users.parent.mkdir(parents=True)
    users.symlink_to(tmp_path / "elsewhere" / "users")
    (tmp_path / "elsewhere" / "users" / "back").symlink_to(users.parent)
    assert read(users.parent) == [("public.users", 1, b"I,1")]
    assert read(tmp_path / "buck*") == [("public.users", 1, b"I,1")]


def test_folders_that_are_removed_while_files_are_listed_are_left_out(users):
    for day in ("01", "02", "03"):
        put(users / "2021" / day, CDC, "I,1\n")
    (users / "old").mkdir()
    for path in (str(users), f"{users}/20*/*"):
        files = find_files(path, (".csv",), deep=True)
        first = next(files)
        for folder in {*(users / "2021").iterdir()} - {first.path.parent}:
            folder.rename(users / "old" / folder.name)
        assert [file.path.parts[-3:] for file in files if "old" not in file.path.parts] == []
        for folder in (users / "old").iterdir():
            folder.rename(users / "2021" / folder.name)


def test_path_of_a_single_file(users):
    file = put(users, CDC, "I,1\n")
    put(users, "20221017-194324349.csv", "I,9\n")
    assert read(file) == read(users / "2021*") == [("public.users", 1, b"I,1")]


def test_circular_link_is_reported(users):
    users.mkdir(parents=True)
    (users / CDC).symlink_to(users / CDC)
    with pytest.raises(EnvironmentProblem, match=rf"{CDC} cannot be looked at"):
        read(users)


def test_folder_name_that_is_no_utf8_is_reported(tmp_path):
    put(Path(os.fsdecode(os.fsencode(tmp_path) + b"/public/\xff")), CDC, "I,1\n")
    with pytest.raises(ConfigProblem, match=r"\\udcff.* has a name that is not UTF-8"):
        read(tmp_path)
