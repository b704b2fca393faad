"""What names, line ends and halves of files mean to `DmsFilesSource`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from dms_folder import settle

from adapters.sources.archive.dms import DmsFilesSource
from adapters.sources.archive.dms.form import DmsRows
from adapters.sources.archive.dms.names import named, table_of
from adapters.sources.archive.dms.source import DmsFilesCheck
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem
from replicator.domain.position import Position

CDC = "20211017-194324349.csv"


def put(folder: Path, name: str, text: str | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
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
def test_names(name, kind, first):
    assert (named(Path(name)).kind, named(Path(name)).first) == (kind, first)


def test_the_last_full_load_lies_below_the_first_change():
    load, change = named(Path("LOAD0FFFFFFF.csv")), named(Path("20050101-000000000.csv"))
    assert load.first + load.most <= change.first


@pytest.mark.parametrize(
    "name", ["users.csv", "LOAD.csv", "LOAD1FFFFFFF.csv", "20211399-194324349.csv", "19991017-194324349.csv", "1-2.csv"]
)
def test_a_foreign_file_stops_the_source_by_name(users, name):
    put(users, name, "I,1\n")
    with pytest.raises(ConfigProblem, match=rf"{name} is no file of AWS DMS"):
        read(users)


def test_other_endings_are_passed_over(users):
    put(users, "readme.txt", "no rows")
    put(users, CDC, "I,1\n")
    assert [value for *_, value in read(users)] == [b"I,1"]


@pytest.mark.parametrize(
    ("folders", "table"),
    [
        ("public/users", "public.users"),
        ("a/public/users/2021/10/17", "public.users"),
        ("public/users/20211017-19", "public.users"),
    ],
)
def test_tables(tmp_path, folders, table):
    assert table_of(tmp_path / folders / CDC) == table


def test_full_load_then_changes_by_their_time_whatever_the_folder(users):
    put(users / "2021" / "10" / "18", "20211018-000000000.csv", "U,1,third\n")
    put(users / "2021" / "10" / "17", CDC, "U,1,second\n")
    put(users, "LOAD0000000A.csv", "1,first b\n")
    put(users, "LOAD00000009.csv", "1,first a\n")
    assert [value for *_, value in read(users.parent)] == [b"1,first a", b"1,first b", b"U,1,second", b"U,1,third"]


def test_two_files_of_one_time_are_refused(users):
    put(users, "20141029-1134010000.csv", "I,1\n")
    put(users / "2014", "20141029-1134010001.csv", "I,2\n")
    with pytest.raises(ConfigProblem, match="are of one table and one time"):
        read(users)
    put(users.parent / "orders", "20141029-1134010000.csv", "I,1\n")
    (users / "2014" / "20141029-1134010001.csv").unlink()
    assert len(read(users.parent)) == 2


def test_rows_with_line_ends_in_quotes(users):
    put(users, CDC, 'I,1,"a\nb"\r\nI,2,"say ""hi""\n"\nI,3,\n\nI,4,x')
    settle(users / CDC)
    assert read(users) == [
        ("public.users", 1, b'I,1,"a\nb"'),
        ("public.users", 2, b'I,2,"say ""hi""\n"'),
        ("public.users", 3, b"I,3,"),
        ("public.users", 5, b"I,4,x"),
    ]


def test_without_quotes_every_line_is_a_row(users):
    put(users, CDC, 'I,1,"a\nI,2,b\n')
    assert [value for *_, value in read(users, quote=None)] == [b'I,1,"a', b"I,2,b"]


def test_a_header_is_beside_every_row(users):
    put(users, CDC, b"\xef\xbb\xbfOp,id\r\nI,1\nI,2\n")
    source, found = DmsFilesSource({"path": str(users), "csv": {"header": True}}), []
    source.run(Position(), lambda batch: found.extend(batch.frame.to_pylist()), threading.Event(), once=True)
    assert [row["value"] for row in found] == [b"I,1", b"I,2"]
    assert {tuple(header["value"] for header in row["headers"]) for row in found} == {(b"cdc", b"Op,id")}
    assert all(str(row["timestamp"]) == "2021-10-17 19:43:24.349000+00:00" for row in found)


def test_a_mark_before_the_first_row_is_none_of_it(users):
    put(users, CDC, b"\xef\xbb\xbfI,1\n")
    assert read(users) == [("public.users", 1, b"I,1")]


@pytest.mark.parametrize("half", ["I,2", 'I,2,"open\n'])
def test_a_row_that_is_being_written_is_waited_for(users, half):
    """While it is read by one run, too: it comes whole, and once."""
    put(users, CDC, f"I,1\n{half}")
    source, found, stop = DmsFilesSource({"path": str(users)}), [], threading.Event()

    def take(batch):
        found.extend(row["value"] for row in batch.frame.to_pylist())
        if found == [b"I,1"] and not batch.records:
            with (users / CDC).open("a") as stream:
                stream.write('"\nI,3\n' if '"' in half else "2\nI,3\n")
        if len(found) >= 3:
            stop.set()

    late = threading.Timer(60, stop.set)
    late.start()
    source.run(Position(), take, stop, once=False)
    late.cancel()
    assert found == [b"I,1", b'I,2,"open\n"' if '"' in half else b"I,22", b"I,3"]


def test_a_last_row_without_its_end_comes_once_the_file_is_settled(users):
    """Also for who has read the file before, which has not changed since."""
    put(users, CDC, "I,1\nI,2")
    source, found, stop = DmsFilesSource({"path": str(users)}), [], threading.Event()

    def take(batch):
        found.extend(row["value"] for row in batch.frame.to_pylist())
        if found == [b"I,1"] and not batch.records:
            settle(users / CDC)
        if len(found) == 2:
            stop.set()

    late = threading.Timer(60, stop.set)
    late.start()
    source.run(Position(), take, stop, once=False)
    late.cancel()
    assert found == [b"I,1", b"I,2"]


def test_a_file_that_comes_too_late_is_a_loss(users):
    put(users, "20211017-194324400.csv", "I,2\n")
    put(users, "20211017-194324500.csv", "I,3\n")
    source, found, stop = DmsFilesSource({"path": str(users)}), [], threading.Event()

    def take(batch):
        found.extend(row["value"] for row in batch.frame.to_pylist())
        if found and not batch.records:
            put(users, "20211017-194324450.csv", "I,1\n")

    with pytest.raises(DataLoss, match=r"was found in 20211017-194324450.csv after later records"):
        source.run(Position(), take, stop, once=False)


def test_a_row_longer_than_any_is_cut(monkeypatch):
    monkeypatch.setattr("adapters.sources.archive.dms.form.LONGEST_ROW", 20)
    lines = [b'I,"open\n', *(b"I,%d\n" % n for n in range(8))]
    found = list(DmsRows(header=False, quote='"').lines(lines))
    assert len(found[0]) <= 20 + 8 and found[1:] == [b"I,%d\n" % n for n in range(len(lines) - len(found), 8)]


def test_options():
    with pytest.raises(ConfigProblem, match=r"csv\.header"):
        DmsFilesSource({"path": "x", "csv": {"header": "perhaps"}})
    with pytest.raises(ConfigProblem, match="topics"):
        DmsFilesSource({"path": "x", "topics": ["a"]})


def test_what_doctor_says(users, tmp_path):
    def said(path):
        (found,) = DmsFilesCheck("s", {"path": str(path), "csv": {"header": True}, "positions": {}}).diagnose()
        return found.severity, found.sentence

    assert said(tmp_path / "nowhere")[0] == "error"
    users.mkdir(parents=True)
    assert said(users) == ("warning", f"The archive {users} has no file yet.")
    put(users, CDC, "I,1\n")
    assert said(users)[0] == "ok"
    put(users, "users.csv", "I,1\n")
    assert said(users)[0] == "error" and "is no file of AWS DMS" in said(users)[1]
    with pytest.raises(EnvironmentProblem):
        read(tmp_path / "nowhere")
