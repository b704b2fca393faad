"""Event logs are read ahead of their use, and errors arrive in order."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adapters.delta.folders import LocalFolder
from adapters.sources.event_log.delta_log import LogFile, ReadWindow
from adapters.sources.event_log.delta_source import STORED, OpenLogFile
from adapters.sources.event_log.source import read_ahead
from replicator.domain.position import Position, Span, TopicPartition


def test_next_batch_is_read_while_one_is_used() -> None:
    used, began = threading.Event(), []

    def read() -> int | None:
        began.append(threading.current_thread())
        if len(began) == 2:
            used.wait(10)
        return len(began) if len(began) < 4 else None

    batches = read_ahead(read)
    assert next(batches) == 1
    while len(began) < 2:
        used.wait(0.01)
    used.set()
    assert list(batches) == [2, 3]
    assert threading.current_thread() not in began


def test_closed_reader_reads_nothing() -> None:
    slow, running = threading.Event(), []

    def read() -> int:
        running.append("begins")
        slow.wait(0.2)
        running.append("ends")
        return 1

    batches = read_ahead(read)
    next(batches)
    batches.close()
    before = list(running)
    slow.wait(0.5)
    assert running == before and running[-1] == "ends"


def test_error_is_raised_in_place_of_its_batch() -> None:
    answers = iter([1, ValueError("gone")])

    def read() -> int:
        found = next(answers)
        if isinstance(found, ValueError):
            raise found
        return found

    batches = read_ahead(read)
    assert next(batches) == 1
    with pytest.raises(ValueError, match="gone"):
        next(batches)
    assert next(batches, None) is None


def test_closed_file_releases_its_memory(tmp_path: Path) -> None:
    """Without a garbage collection of cycles, which rarely runs."""
    rows = 20_000
    columns = {name: pa.nulls(rows, STORED.field(name).type) for name in STORED.names}
    columns |= {
        "partition": pa.array([0] * rows, pa.int32()),
        "offset": pa.array(range(rows), pa.int64()),
        "value": pa.array([b"%0600d" % i for i in range(rows)]),
    }
    pq.write_table(
        pa.table({name: columns[name].cast(STORED.field(name).type) for name in STORED.names}), tmp_path / "a.parquet"
    )
    place = TopicPartition("t", 0)
    window = ReadWindow(Span(Position({place: 0}), Position({place: 9_000})), ())
    columns.clear()
    gc.collect()
    gc.disable()
    try:
        before = pa.total_allocated_bytes()
        file = OpenLogFile(LogFile(LocalFolder(tmp_path).locate("a.parquet", 1), "t", (0, rows - 1), (0, 0)), STORED, 0)
        read = sum(piece.num_rows for piece in file.read_rows(window))
        assert read == 9_000 and pa.total_allocated_bytes() > before + 4_000_000
        file.close()
        del file
        assert pa.total_allocated_bytes() < before + 1_000_000
    finally:
        gc.enable()
