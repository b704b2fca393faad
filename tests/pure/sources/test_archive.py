"""The archive source on real files."""

from __future__ import annotations

import gzip
import itertools
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from support.archive_files import write_archive

from adapters.sources.files.source import ArchiveSource
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Reject, RejectCode
from replicator.domain.out_of_range import FIRST_MS, LAST_MS
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Batch

T = TopicPartition("t", 0)
Batches = list[Batch[pa.Table]]


def line(offset: int, value: object = "v", *, topic: str = "t", partition: int = 0, **more: object) -> str:
    record = {"topic": topic, "partition": partition, "offset": offset, "timestamp": [1, 5], "headers": []}
    return json.dumps({**record, "key": "k", "value": value, **more}) + "\n"


def table(*offsets: int) -> pa.Table:
    rows = [
        {
            "topic": "t",
            "partition": 0,
            "offset": o,
            "timestamp": o,
            "headers": [{"name": "h", "value": b"\xff"}],
            "key": b"k",
            "value": b"\xfe" if o % 2 else None,
        }
        for o in offsets
    ]
    return pa.Table.from_pylist(rows, schema=RAW)


def source(path: Path, **options: object) -> ArchiveSource:
    return ArchiveSource({"path": str(path), **options})


def once(path: Path, start: Position | None = None, **options: object) -> Batches:
    got: Batches = []
    source(path, **options).run(start or Position(), got.append, threading.Event(), once=True)
    return got


def offsets(batches: Batches, place: TopicPartition = T) -> list[int]:
    rows = [r for b in batches for r in b.frame.to_pylist()]
    return [r["offset"] for r in rows if (r["topic"], r["partition"]) == place]


def follow(path: Path, steps: list[Callable[[], object]]) -> Batches:
    """Follow `path`; after each look one step is done, and after the last step's look it ends."""
    got, stop, left = list[Batch[pa.Table]](), threading.Event(), iter(steps)

    def apply(batch: Batch[pa.Table]) -> None:
        got.append(batch)
        step = next(left, None)
        stop.set() if step is None else step()

    source(path).run(Position(), apply, stop, once=False)
    return got


@pytest.mark.parametrize("at", [FIRST_MS - 1, LAST_MS + 1, 2**62, -(2**62), 10**30, -(10**30), [2, 2**62]])
def test_time_out_of_range_is_null(tmp_path: Path, at: object) -> None:
    (tmp_path / "a.jsonl").write_text(line(0, timestamp=at) + line(1, timestamp=FIRST_MS) + line(2, timestamp=[1, LAST_MS]))
    (batch,) = once(tmp_path)
    assert batch.frame["timestamp"].cast(pa.int64()).to_pylist() == [None, FIRST_MS, LAST_MS]


def test_time_out_of_range_is_null_in_parquet(tmp_path: Path) -> None:
    odd = table(0, 1, 2, 3)
    times = pa.array([2**62, FIRST_MS - 1, None, LAST_MS], RAW.field("timestamp").type)
    write_archive(odd.set_column(RAW.get_field_index("timestamp"), RAW.field("timestamp"), times), tmp_path / "a.parquet")
    (batch,) = once(tmp_path)
    assert batch.frame["timestamp"].cast(pa.int64()).to_pylist() == [None, None, None, LAST_MS]
    assert batch.frame.schema == RAW


def test_record_of_every_form(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(
        line(3, None, key={"base64": "/w=="}, headers=[["a", "1"], ["a", None]])
        + line(5, "é", timestamp=None, headers=None, key=None)
        + "\n"
        + line(6, timestamp=7)
        + line(8, timestamp=[0, -1]).rstrip("\n")
    )
    (batch,) = once(file)
    assert batch.frame.schema == RAW
    first, second, third, fourth = batch.frame.to_pylist()
    assert (first["key"], first["value"], first["timestamp"].microsecond) == (b"\xff", None, 5000)
    assert first["headers"] == [{"name": "a", "value": b"1"}, {"name": "a", "value": None}]
    assert (second["key"], second["value"], second["timestamp"], second["headers"]) == (None, "é".encode(), None, None)
    assert third["timestamp"].microsecond == 7000
    assert (fourth["timestamp"], fourth["offset"]) == (None, 8)
    assert (batch.span.start, batch.span.end) == (Position({T: 3}), Position({T: 9}))
    assert (batch.records, batch.size) == (4, 1 + 2 + 2 + 2)


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "parquet"])
def test_written_archive_is_read_back(tmp_path: Path, suffix: str) -> None:
    wanted = table(4, 5, 9)
    write_archive(wanted, tmp_path / f"t.{suffix}")
    (batch,) = once(tmp_path)
    assert batch.frame.to_pylist() == wanted.to_pylist()
    assert batch.span.start == Position({T: 4})
    assert [p.name for p in tmp_path.iterdir()] == [f"t.{suffix}"]


def test_unknown_file_extension_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigProblem, match="not the name of an archive file"):
        write_archive(table(1), tmp_path / "t.csv")


def test_files_are_read_in_name_order_each_record_once(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(line(2) + line(3) + line(5))
    write_archive(table(0, 1, 2), tmp_path / "a.parquet")
    write_archive(table(5, 6), tmp_path / "c.parquet")
    (tmp_path / "notes.txt").write_text("no record")
    assert offsets(once(tmp_path)) == [0, 1, 2, 3, 5, 6]
    assert offsets(once(tmp_path / "[bc].*")) == [2, 3, 5, 6]
    assert offsets(once(tmp_path, Position({T: 3}))) == [3, 5, 6]


def test_spans_of_batches_are_adjacent_and_start_at_the_position(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(line(n * 3) for n in range(10)))
    got = once(tmp_path, Position({T: 4}), batch_records=2)
    assert offsets(got) == [6, 9, 12, 15, 18, 21, 24, 27]
    assert got[0].span.start == Position({T: 4})
    assert all(a.span.end == b.span.start for a, b in itertools.pairwise(got) if b.records)
    assert max(b.records for b in got) == 2
    assert len(once(tmp_path, batch_bytes=4)) == 6


@pytest.mark.parametrize(
    "bad", ["{", '{"topic": "t"}', line(-1).strip(), line(1, {"base64": "*"}).strip(), line(1, topic="").strip(), "\x00"]
)
def test_bad_line_is_delivered_with_its_reason(tmp_path: Path, bad: str) -> None:
    (tmp_path / "a.jsonl").write_text(line(0) + bad + "\n" + line(1))
    (batch,) = once(tmp_path)
    place = TopicPartition("archive:a.jsonl", 0)
    (row,) = [r for r in batch.frame.to_pylist() if r["topic"] == place.topic]
    assert (row["offset"], row["value"]) == (2, bad.encode())
    (header,) = row["headers"]
    reject = Reject.parse(header["value"].decode())
    assert header["name"] == "replicator.error"
    assert reject.code == RejectCode.MALFORMED
    assert "a.jsonl line 2" in reject.sentence
    assert offsets([batch]) == [0, 1]
    assert batch.span.end[place] == 3
    again = once(tmp_path, Position(dict(batch.span.end)))
    assert not any(b.records for b in again)


def test_new_lines_and_files_are_read_and_a_partial_line_waits(tmp_path: Path) -> None:
    file, half = tmp_path / "a.jsonl", line(1)
    file.write_text(line(0) + half[:20])

    def finish() -> None:
        with file.open("a") as stream:
            stream.write(half[20:])

    def another() -> None:
        (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(line(2).encode()))

    got = follow(tmp_path, [finish, another])
    assert [offsets([b]) for b in got] == [[0], [1], [2]]


def test_partial_compressed_and_parquet_files_wait(tmp_path: Path) -> None:
    write_archive(table(2), tmp_path / "whole.parquet")
    whole, packed = (tmp_path / "whole.parquet").read_bytes(), gzip.compress((line(0) + line(1)).encode())
    (tmp_path / "whole.parquet").unlink()
    (tmp_path / "a.jsonl.gz").write_bytes(packed[:-9])
    (tmp_path / "b.parquet").write_bytes(whole[:-9])
    got = follow(
        tmp_path,
        [
            lambda: (tmp_path / "a.jsonl.gz").write_bytes(packed),
            lambda: (tmp_path / "b.parquet").write_bytes(whole),
        ],
    )
    assert offsets(got) == [0, 1, 2]


@pytest.mark.slow
def test_idle_gives_empty_batches(tmp_path: Path) -> None:
    got = follow(tmp_path, [lambda: None])
    assert [b.records for b in got] == [0, 0]


def test_late_records_are_data_loss(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line(0) + line(5))
    with pytest.raises(DataLoss, match="Record 3 of t"):
        follow(tmp_path, [lambda: (tmp_path / "b.jsonl").write_text(line(3)), lambda: None])


def test_read_is_exact(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(line(n) for n in (0, 1, 2, 5, 9)))
    got: Batches = []
    source(tmp_path).read(Position({T: 1}), Position({T: 8}), got.append, threading.Event())
    assert offsets(got) == [1, 2, 5]
    assert (got[0].span.start, got[-1].span.end) == (Position({T: 1}), Position({T: 8}))
    with pytest.raises(DataLoss, match="above"):
        source(tmp_path).read(Position({T: 1}), Position({T: 11}), got.append, threading.Event())


def test_losses_start_and_end(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line(3) + line(7) + "bad\n")
    archive = source(tmp_path)
    bad = TopicPartition("archive:a.jsonl", 0)
    assert archive.start() == Position({T: 3, bad: 3})
    assert archive.end() == Position({T: 8, bad: 4})
    assert archive.losses(Position({T: 3, bad: 0}), {}) == {}
    assert archive.losses(Position({T: 8}), {}) == {}
    assert "Records 1 to 2" in archive.losses(Position({T: 1}), {})[T]
    assert "above" in archive.losses(Position({T: 9}), {})[T]
    gone = TopicPartition("u", 0)
    assert "no record" in archive.losses(Position({gone: 0}), {})[gone]
    with pytest.raises(DataLoss, match="Records 1 to 2"):
        once(tmp_path, Position({T: 1}))


def test_error_of_consume_batch_is_raised(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line(0))

    def fail(_batch: object) -> None:
        raise ArithmeticError("mine")

    with pytest.raises(ArithmeticError, match="mine"):
        source(tmp_path).run(Position(), fail, threading.Event(), once=True)


def test_missing_or_invalid_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="is not there"):
        once(tmp_path / "missing")
    with pytest.raises(ConfigProblem, match="pth"):
        ArchiveSource({"pth": "x"})
    (tmp_path / "a.jsonl.gz").write_bytes(b"not gzip at all")
    with pytest.raises(EnvironmentProblem, match="damaged"):
        once(tmp_path)
