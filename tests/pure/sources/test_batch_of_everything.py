"""`mode: batch` of a file source: everything available is one batch."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from adapters.sources.files import ArchiveSource, files_source
from replicator.domain.errors import Fatal
from replicator.domain.position import Position, TopicPartition

T = TopicPartition("t", 0)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    for part in range(3):
        rows = [
            {"topic": "t", "partition": 0, "offset": n, "key": None, "value": "x" * 10}
            for n in range(part * 4, part * 4 + 4)
        ]
        (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def batches(source, start=None, stop=None, **how):
    found = []
    source.run(start or Position(), found.append, stop or threading.Event(), once=True)
    return [(batch.records, batch.span.end.get(T)) for batch in found]


def test_everything_is_one_batch(archive):
    bounds = {"path": archive, "batch_records": 5, "batch_bytes": 120}
    assert batches(ArchiveSource(bounds)) == [(5, 5), (5, 10), (2, 12)]
    whole = ArchiveSource({**bounds, "mode": "batch"})
    assert batches(whole) == [(12, 12)]
    assert batches(whole, Position({T: 7})) == [(5, 12)]
    assert batches(whole, Position({T: 12})) == [(0, 12)]


def test_catch_up_is_one_batch_too(archive):
    found = []
    source = ArchiveSource({"path": archive, "batch_records": 5, "mode": "batch"})
    source.read(Position({T: 1}), Position({T: 9}), found.append, threading.Event())
    assert [(batch.records, batch.span.end[T]) for batch in found] == [(8, 9)]


def test_more_than_the_limit_is_refused(archive):
    source = ArchiveSource({"path": archive, "batch_bytes": 119, "mode": "batch"})
    found = []
    with pytest.raises(Fatal, match=f"{archive} have more than the 119 bytes") as caught:
        source.run(Position(), found.append, threading.Event(), once=True)
    assert found == [] and "limits.memory" in caught.value.next_step


def test_interrupted_read_delivers_nothing(archive):
    """A stream delivers what it has read so far."""

    class Soon:
        """Asked for after so many looks."""

        def __init__(self, looks: int) -> None:
            self.left = looks

        def is_set(self) -> bool:
            self.left -= 1
            return self.left < 0

        def wait(self, seconds: float) -> bool:
            return self.is_set()

    for mode, expected in (("stream", [(7, 7)]), ("batch", [])):
        found = []
        source = ArchiveSource({"path": archive, "mode": mode})
        source.run(Position(), found.append, Soon(9), once=True)
        assert [(batch.records, batch.span.end.get(T)) for batch in found] == expected


def test_row_files_are_one_batch(tmp_path):
    from support.rows_folder import write_closed_file

    for number in range(3):
        write_closed_file(tmp_path / "items" / f"{number}.jsonl", b'{"a":1}\n{"a":2}\n')
    found = []
    said = {"path": str(tmp_path), "format": "rows", "files": "jsonl", "batch_records": 1, "mode": "batch"}
    files_source(said).run(Position(), found.append, threading.Event(), once=True)
    assert [batch.records for batch in found] == [6]
