"""The single file of Kafka's file sink, which grows while it is read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from paths import GOLDEN

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.sources.files import archive_check, archive_source
from adapters.sources.files.connect import LineFileFormat, LineFileSource
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Reject
from replicator.domain.position import Position, TopicPartition

GOLDEN = GOLDEN / "connect_file" / "events.txt"
HOME = TopicPartition("events", 0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.txt"


def source(file: Path, **more: Any) -> LineFileSource:
    made = archive_source({"path": str(file), "files": "lines", "topic": "events", **more})
    assert isinstance(made, LineFileSource)
    return made


def read(file: Path, start: Position | None = None, **more: Any) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows, and the identity of the topic."""
    found: list[dict[str, Any]] = []
    identity: dict[str, str] = {}

    def take(batch: Any) -> None:
        found.extend(batch.frame.to_pylist())
        identity.update(batch.identity)

    source(file, **more).run(start or Position(), take, threading.Event(), once=True)
    return found, identity


def values(file: Path, start: Position | None = None, **more: Any) -> list[tuple[int, bytes | None]]:
    return [(row["offset"], row["value"]) for row in read(file, start, **more)[0]]


def follow(file: Path, steps: list[Callable[[], None]]) -> list[tuple[int, bytes | None]]:
    """Read on; whenever no records come, the next step is taken, and at last the end is asked for."""
    found: list[tuple[int, bytes | None]] = []
    stop, left = threading.Event(), list(steps)

    def take(batch: Any) -> None:
        found.extend((row["offset"], row["value"]) for row in batch.frame.to_pylist())
        if not batch.records:
            (left.pop(0) if left else stop.set)()

    source(file, look_every="0 seconds").run(Position(), take, stop, once=False)
    return found


def append(file: Path, text: str) -> Callable[[], None]:
    def write() -> None:
        with file.open("a") as stream:
            stream.write(text)

    return write


def test_file_has_events_of_several_topics():
    raw = pa.Table.from_pylist(read(GOLDEN)[0], RAW)
    assert {(row["topic"], row["partition"], row["key"], row["headers"], row["timestamp"]) for row in raw.to_pylist()} == {
        ("events", 0, None, None, None)
    }
    assert (raw["offset"].to_pylist(), raw["value"].null_count) == ([0, 1, 2, 3, 4], 1)
    decoder = DebeziumJsonDecoder({"keys": {"public.t": ["id"], "public.u": ["id"]}})
    routes = decoder.route(raw).to_pylist()
    assert [(route["table"], route["error"]) for route in routes] == [
        ("public.t", None),
        ("public.u", None),
        ("public.t", None),
        (None, None),
        ("public.t", None),
    ]


def test_lines_are_values(file):
    file.write_bytes('{"a":1}\r\nnull\n\n  \n "null"\né\n{"cut'.encode())
    assert values(file) == [(0, b'{"a":1}'), (1, None), (4, b'"null"'), (5, "é".encode())]
    assert (dict(source(file).start()), dict(source(file).end())) == ({HOME: 0}, {HOME: 6})


@pytest.mark.parametrize("name", ["events.txt", "events.json", "events.csv", "events"])
def test_partial_line_waits_and_nothing_is_read_twice(tmp_path, name, monkeypatch):
    file = tmp_path / name
    file.write_text("1\n2")
    looked_at: list[bytes] = []
    own = LineFileFormat.record
    monkeypatch.setattr(
        LineFileFormat, "record", lambda form, of, line, at: (looked_at.append(line), own(form, of, line, at))[1]
    )
    assert follow(file, [append(file, "2\n3"), append(file, "\n")]) == [(0, b"1"), (1, b"22"), (2, b"3")]
    assert looked_at == [b"1\n", b"2", b"22\n", b"3", b"3\n"]
    assert values(file, Position({HOME: 2})) == [(2, b"3")]


def test_empty_file_may_grow_later(file):
    file.touch()
    assert follow(file, [append(file, "1"), append(file, "1\n"), append(file, "2\n")]) == [(0, b"11"), (1, b"2")]


def test_too_long_line_is_rejected(file):
    file.write_text("1\n" + "x" * 5000 + "\n3\n")
    rows, _ = read(file, message_bytes=1000)
    assert [(row["topic"], row["offset"]) for row in rows] == [("events", 0), ("archive:events.txt", 2), ("events", 2)]
    assert Reject.parse(rows[1]["headers"][0]["value"].decode()).code == "TOO_LARGE"


def test_truncated_file_is_data_loss(file):
    file.write_text("1\n2\n3\n")
    with pytest.raises(DataLoss, match="became shorter: it had 6 bytes, and has 2"):
        follow(file, [lambda: os.truncate(file, 2)])
    with pytest.raises(DataLoss, match=r"Offset 3 of .* lies above the end"):
        read(file, Position({HOME: 3}))


@pytest.mark.parametrize("in_place", [True, False])
def test_replaced_file_is_data_loss(file, in_place):
    file.write_text("1\n2\n")
    other = "9\n8\n7\n"

    def replace_file() -> None:
        if not in_place:
            file.unlink()
        file.write_text(other)

    with pytest.raises(DataLoss, match="is not the file that was read: it begins with another line"):
        follow(file, [replace_file])


def test_replaced_file_is_found_at_the_next_start(file):
    file.write_text("1\n2\n")
    _, identity = read(file)
    assert identity.keys() == {"events"}
    assert not source(file).losses(Position({HOME: 2}), identity)
    append(file, "3\n")()
    file.write_text(file.read_text())  # A copy is the same file.
    assert not source(file).losses(Position({HOME: 2}), identity)
    file.write_text("9\n8\n7\n")
    assert "begins with another line" in source(file).losses(Position({HOME: 2}), identity)[HOME]
    assert not source(file).losses(Position({HOME: 2}), {})


def test_missing_file_is_reported(file):
    with pytest.raises(EnvironmentProblem, match="is not there"):
        read(file)
    [found] = archive_check("sink", {"path": str(file), "files": "lines", "topic": "events"}).diagnose()
    assert (found.severity, "is not there" in found.sentence) == ("error", True)


@pytest.mark.parametrize("path", ["", "/*.txt", "/a.txt.gz"])
def test_path_must_be_one_file(tmp_path, path):
    for name in ("a.txt", "b.txt", "a.txt.gz"):
        (tmp_path / name).write_text("1\n")
    with pytest.raises(ConfigProblem, match="is not one file of lines"):
        read(Path(str(tmp_path) + path))


def test_topic_is_required(file):
    with pytest.raises(ConfigProblem, match="topic: must be a name"):
        archive_source({"path": str(file), "files": "lines"})
