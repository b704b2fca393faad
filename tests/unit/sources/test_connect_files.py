"""What names and lines of sinks' files mean to `ConnectFilesSource`, and what it refuses."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rows_folder import WRITTEN, put

from adapters.sources.files.connect import ConnectFilesCheck, ConnectFilesSource
from adapters.sources.files.connect.names import named
from adapters.sources.files.folders import archive_check, archive_source
from replicator.domain.change import ERROR_HEADER
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Reject, Retryable
from replicator.domain.position import Position, TopicPartition

NAME = "shop.items+0+%010d%s"
HOME = TopicPartition("shop.items", 0)


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    return tmp_path / "topics"


def sink(folder: Path, first: int, text: str, ending: str = ".json", *, inside: str = "partition=0", age: int = 0) -> Path:
    return put(folder / "shop.items" / inside / (NAME % (first, ending)), text.encode(), age=age)


def source(folder: Path, **more: Any) -> ConnectFilesSource:
    made = archive_source({"path": str(folder), "files": "connect", **more})
    assert isinstance(made, ConnectFilesSource)
    return made


def read(folder: Path, start: Position | None = None, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    reader = source(folder, **more)
    reader.run(start or Position(), lambda batch: found.extend(batch.frame.to_pylist()), threading.Event(), once=True)
    return found


def follow(folder: Path, take: Callable[[Any], None]) -> None:
    """Read on until something is refused, for some seconds at most."""
    stop = threading.Event()
    late = threading.Timer(20, stop.set)
    late.start()
    try:
        source(folder, look_every=0).run(Position(), take, stop, once=False)
    finally:
        late.cancel()


def values(folder: Path, start: Position | None = None, **more: Any) -> list[tuple[int, bytes | None]]:
    return [(row["offset"], row["value"]) for row in read(folder, start, **more)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders+0+0000000042.json", ("orders", 0, 42, None)),
        ("cdc.public.order_items+12+42.json.gz", ("cdc.public.order_items", 12, 42, None)),
        ("a.keys+3+0000000000.keys.json", ("a.keys", 3, 0, "keys")),
        ("orders+0+7.headers.json.gz", ("orders", 0, 7, "headers")),
        ("orders+0+7.bin", ("orders", 0, 7, None)),
    ],
)
def test_names(name, expected):
    place, first, part, _ = named(Path("/x") / name)
    assert (*place, first, part) == expected


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("orders-0-42.json", "is no file of a sink"),
        ("orders+0+42.values.json", "is no file of a sink"),
        ("orders+2147483648+42.json", "is no file of a sink"),
        ("orders+0+9223372036854775807.json", "is no file of a sink"),
        ("orders+0+42.avro", "is in a format that is not read"),
        ("orders+0+42.snappy.parquet", "is in a format that is not read"),
        ("orders+0+42.keys.avro", "is in a format that is not read"),
    ],
)
def test_other_names_are_refused(topics, name, sentence):
    put(topics / name, b"{}\n")
    with pytest.raises(ConfigProblem, match=sentence):
        read(topics)
    [found] = archive_check("sink", {"path": str(topics), "files": "connect"}).diagnose()
    assert (found.severity, sentence in found.sentence) == ("error", True)


def test_files_that_are_none_of_the_sink_are_passed_over(topics):
    sink(topics, 0, '{"a": 1}\n')
    put(topics / "_SUCCESS.json", b"x")
    put(topics / ".tmp.json", b"x")
    put(topics / "README.md", b"x")
    assert values(topics) == [(0, b'{"a": 1}')]
    assert isinstance(archive_check("sink", {"path": str(topics), "files": "connect"}), ConnectFilesCheck)


def test_lines_are_messages(topics):
    sink(topics, 5, '{"a":1}\n"{\\"a\\":\\u00e9}"\nnull\n 7 \n"cut\nno json\n[1]')
    assert values(topics) == [
        (5, b'{"a":1}'),
        (6, '{"a":é}'.encode()),
        (7, None),
        (8, b"7"),
        (9, b'"cut'),
        (10, b"no json"),
        (11, b"[1]"),
    ]
    sink(topics, 12, '"a"\nnull\n\n  {}\n', ".bin.gz")
    assert values(topics, Position({HOME: 12})) == [(12, b'"a"'), (13, b"null"), (14, b""), (15, b"  {}")]


def test_records_have_keys_headers_and_the_time_of_their_file(topics):
    file = sink(topics, 2, '{"a":1}\n{"a":2}\n{"a":3}\n').name
    sink(topics, 2, '"text"\n{"id":2}\nnull\n', ".keys.json")
    sink(topics, 2, '{"headers":[{"key":"h","value":"v"},{"key":"h","value":null}]}\n{"headers":[]}\n[]\n', ".headers.json")
    first, second, bad = read(topics)
    assert (first["key"], second["key"]) == (b"text", b'{"id":2}')
    assert [(h["name"], h["value"]) for h in first["headers"]] == [("h", b"v"), ("h", None)]
    assert (second["headers"], second["offset"], second["timestamp"].timestamp()) == ([], 3, WRITTEN)
    assert (bad["topic"], bad["offset"], bad["value"]) == (f"archive:shop.items/partition=0/{file}", 3, b'{"a":3}')
    assert "its headers cannot be read" in Reject.parse(bad["headers"][0]["value"].decode()).sentence
    assert bad["headers"][0]["name"] == ERROR_HEADER


@pytest.mark.parametrize("inside", ["partition=0", "year=2024/month=01"])
def test_a_file_that_goes_on_where_another_begins_is_refused(topics, inside):
    sink(topics, 0, "{}\n{}\n{}\n")
    sink(topics, 2, "{}\n", inside=inside)
    with pytest.raises(ConfigProblem, match=r"0.json goes on at record 2 of shop.items\[0\], with which .*2.json begins"):
        read(topics)


def test_it_is_found_when_the_other_comes_later_too(topics):
    sink(topics, 0, "{}\n{}\n{}\n")
    seen: list[int] = []

    def take(batch: Any) -> None:
        seen.extend(batch.frame["offset"].to_pylist())
        if not batch.records and seen == [0, 1, 2]:
            sink(topics, 2, "{}\n{}\n")

    with pytest.raises(ConfigProblem, match="goes on at record 2"):
        follow(topics, take)
    assert seen == [0, 1, 2]
    with pytest.raises(ConfigProblem, match="goes on at record 2"):
        read(topics, Position({HOME: 3}))


def test_records_that_the_connector_passed_over_leave_holes(topics):
    sink(topics, 0, "{}\n{}\n")
    sink(topics, 7, "{}\n")
    assert values(topics) == [(0, b"{}"), (1, b"{}"), (7, b"{}")]
    assert (dict(source(topics).start()), dict(source(topics).end())) == ({HOME: 0}, {HOME: 8})


def test_two_files_that_begin_alike_are_refused(topics):
    sink(topics, 0, "{}\n")
    sink(topics, 0, "{}\n", inside="hour=01")
    with pytest.raises(ConfigProblem, match="begin with the same record"):
        read(topics)


def test_a_file_that_comes_late_is_a_loss(topics):
    sink(topics, 5, "{}\n")

    def take(batch: Any) -> None:
        if not batch.records:
            sink(topics, 1, "{}\n")

    with pytest.raises(DataLoss, match=r"turned up after later files of table shop.items had"):
        follow(topics, take)


def test_keys_without_values_are_refused_once_they_are_settled(topics):
    sink(topics, 0, "{}\n")
    lonely = sink(topics, 1, '{"id": 1}\n', ".keys.json", inside="tombstone")
    with pytest.raises(ConfigProblem, match="of records without values"):
        read(topics)
    os.utime(lonely)
    assert len(read(topics)) == 1


def test_once_a_partition_has_keys_a_file_without_them_is_not_complete(topics):
    sink(topics, 0, "{}\n")
    sink(topics, 1, "{}\n")
    sink(topics, 1, "1\n", ".keys.json")
    sink(topics, 2, "{}\n")
    with pytest.raises(Retryable, match=r"0002.json has no file of keys"):
        read(topics)
    sink(topics, 2, "2\n", ".keys.json")
    assert [row["key"] for row in read(topics)] == [None, b"1", b"2"]


def test_keys_that_end_too_early(topics):
    sink(topics, 0, "{}\n{}\n")
    sink(topics, 0, "1\n", ".keys.json")
    with pytest.raises(EnvironmentProblem, match=r"keys.json has 1 lines, and .* has more"):
        read(topics)


def test_files_are_read_once_nobody_has_written_to_them(topics):
    sink(topics, 0, "{}\n")
    fresh = sink(topics, 1, "{}\n")
    sink(topics, 1, "1\n", ".keys.json")
    os.utime(fresh.with_name(NAME % (1, ".keys.json")), (time.time() + 30,) * 2)
    reader, found, stop = source(topics, settle=10), [], threading.Event()

    def take(batch: Any) -> None:
        found.extend(batch.frame["offset"].to_pylist())
        stop.set()

    reader.run(Position(), take, stop, once=False)
    assert found == [0]


def test_lines_have_limits(topics):
    long = "x" * 4096
    sink(topics, 0, f'{{"a":1}}\n{long}\n{{"a":2}}\n{{"a":3}}\n', ".json.gz")
    sink(topics, 0, f"1\n2\n{long}\n4\n", ".keys.json.gz")
    rows = read(topics, message_bytes=200)
    assert [(row["offset"], row["key"]) for row in rows if row["topic"] == HOME.topic] == [(0, b"1"), (3, b"4")]
    rejects = [Reject.parse(row["headers"][0]["value"].decode()) for row in rows if row["topic"] != HOME.topic]
    assert [reject.code for reject in rejects] == ["TOO_LARGE", "TOO_LARGE"]
    assert "keys.json.gz line 3" in rejects[1].sentence


def test_only_what_may_be_new_is_read_again(topics, monkeypatch):
    for first in range(6):
        sink(topics, first, "{}\n")
    opened: list[str] = []
    own = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *how: (opened.append(self.name), own(self, *how))[1])
    assert values(topics, Position({HOME: 4})) == [(4, b"{}"), (5, b"{}")]
    # The first one says where records begin; and of those before one more is read, which may go on.
    assert {int(name[13:23]) for name in opened} == {0, 2, 3, 4, 5}


def test_what_is_open_does_not_travel(topics):
    sink(topics, 0, "{}\n")
    sink(topics, 0, "1\n", ".keys.json")
    reader = source(topics)
    reader.run(Position(), lambda _: None, threading.Event(), once=True)
    assert pickle.loads(pickle.dumps(reader._form))._beside == {}
