"""The DMS files that are read: no more than needed to find the first and last rows."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from test_dms_folders import put

from adapters.sources.files.dms import DmsFilesSource
from adapters.sources.files.file_reader import ArchiveReader
from replicator.domain.position import Position, TopicPartition

USERS = TopicPartition("public.users", 0)
NAMES = [f"20211017-19432400{n}.csv" for n in range(6)]


@pytest.fixture
def users(tmp_path):
    return tmp_path / "bucket" / "public" / "users"


@pytest.fixture
def looked_into(monkeypatch):
    """The files that were read, by their names."""
    seen: list[str] = []
    read = ArchiveReader._read_from

    def record_read(reading: Any, file: Any, *where: int) -> Any:
        seen.append(file.label)
        return read(reading, file, *where)

    monkeypatch.setattr(ArchiveReader, "_read_from", record_read)
    return seen


def source_of(folder: Any, **options: Any) -> DmsFilesSource:
    return DmsFilesSource({"path": str(folder), **options})


def values(source: DmsFilesSource, start: Position | None = None) -> list[bytes]:
    found: list[bytes] = []
    source.run(start or Position(), lambda b: found.extend(b.frame["value"].to_pylist()), threading.Event(), once=True)
    return found


def test_first_and_last_file_give_the_range_of_a_table(users, looked_into):
    for number, name in enumerate(NAMES):
        put(users, name, f"I,{number}\nI,x\n")
    put(users.parent / "orders", "LOAD00000001.csv", "7\n")
    source = source_of(users.parent)
    assert source.beginning()[USERS] == (1634499804000 << 21) + 1
    assert source.end()[USERS] == (1634499804005 << 21) + 3
    assert sorted(looked_into) == ["orders/LOAD00000001.csv", f"users/{NAMES[0]}", f"users/{NAMES[-1]}"]
    put(users, "20211017-194324006.csv", "I,9\n")
    assert source.end()[USERS] == (1634499804006 << 21) + 2 and len(looked_into) == 4


def test_empty_files_at_both_ends(users, looked_into):
    for number, name in enumerate(NAMES):
        put(users, name, "" if number in (0, 1, 4, 5) else f"I,{number}\n")
    source = source_of(users.parent)
    assert (source.beginning()[USERS], source.end()[USERS]) == ((1634499804002 << 21) + 1, (1634499804003 << 21) + 2)
    assert values(source) == [b"I,2", b"I,3"]
    empty = source_of(users.parent.parent / "public")
    for name in NAMES:
        put(users, name, "")
    assert empty.end() == Position() and values(source_of(users.parent)) == []


def test_start_position_reads_only_later_files(users, looked_into):
    for number, name in enumerate(NAMES):
        put(users, name, f"I,{number}\nI,{number} b\n")
    source = source_of(users.parent)
    at = Position({USERS: (1634499804003 << 21) + 2})
    source.losses(at, {})
    looked_into.clear()
    assert values(source, at) == [b"I,3 b", b"I,4", b"I,4 b", b"I,5", b"I,5 b"]
    assert looked_into == [f"users/{name}" for name in NAMES[3:]]
    # The end of a file and the beginning of the next one are two places: both files are read.
    looked_into.clear()
    assert values(source, Position({USERS: (1634499804003 << 21) + 3})) == [b"I,4", b"I,4 b", b"I,5", b"I,5 b"]
    assert looked_into == [f"users/{name}" for name in NAMES[3:]]


def test_read_of_missing_records(users):
    for number, name in enumerate(NAMES):
        put(users, name, f"I,{number}\nI,{number} b\n")
    found: list[bytes] = []
    start, until = (Position({USERS: (1634499804000 + n << 21) + 2}) for n in (1, 3))
    source = source_of(users.parent)
    source.read(start, until, lambda b: found.extend(b.frame["value"].to_pylist()), threading.Event())
    assert found == [b"I,1 b", b"I,2", b"I,2 b", b"I,3"]


def test_read_through_a_file_ends_there(users):
    for number, name in enumerate(NAMES):
        put(users, name, f"I,{number}\n")
    put(users.parent / "orders", "LOAD00000001.csv", "7\n")
    assert values(source_of(users.parent, through=[f"users/{NAMES[2]}"])) == [b"I,0", b"I,1", b"I,2"]
    assert values(source_of(users.parent, through=[str(users / NAMES[1]), "orders/LOAD00000001.csv"])) == [
        b"7",
        b"I,0",
        b"I,1",
    ]
    assert values(source_of(users.parent, through=["users/gone.csv"])) == []
    put(users.parent, "CDC_TXN-20211017194324003.csv", "U,users,public,3\nU,orders,public,7\n")
    (users / NAMES[3]).unlink()
    found = values(source_of(users.parent, through=["CDC_TXN-20211017194324003.csv"]))
    assert found == [b"7", b"I,0", b"I,1", b"I,2", b"U,3", b"U,7"]
    assert values(source_of(users.parent, through=[f"users/{NAMES[1]}"])) == [b"I,0", b"I,1"]
