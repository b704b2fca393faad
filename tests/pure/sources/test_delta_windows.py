"""Windows over the files of an event log: each row is read once."""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from support.recorded_log import RecordedLog

from adapters.sources import delta_reader
from adapters.sources.event_log import delta_source
from adapters.sources.event_log.delta_source import DeltaSource, Period
from replicator.domain.change import RAW
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Batch

TOPIC = "cdc.public.items"
BATCH = 20_000


def records(places: list[tuple[int, int]], size: int = 200) -> pa.Table:
    rows = [
        {
            "topic": TOPIC,
            "partition": p,
            "offset": o,
            "timestamp": 1_700_000_000_000,
            "key": b"k",
            "value": b"%d" % o + b" " * size,
        }
        for p, o in places
    ]
    return pa.Table.from_pylist(rows, RAW)


@pytest.fixture
def log(tmp_path: Path) -> RecordedLog:
    made = RecordedLog(tmp_path / "log")
    made.create()
    return made


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every piece whose values were read."""
    pieces: list[int] = []

    class Counted(pq.ParquetFile):
        def iter_batches(self, *words: Any, **named: Any) -> Any:
            for batch in super().iter_batches(*words, **named):
                pieces.extend([batch.num_rows] if "value" in named["columns"] else [])
                yield batch

    monkeypatch.setattr(delta_reader.pq, "ParquetFile", Counted)
    monkeypatch.setattr(delta_source, "PIECE_ROWS", 50)
    return pieces


def list_offsets(log: RecordedLog, **options: Any) -> list[list[tuple[int, int]]]:
    """The places of each batch with records."""
    batches: list[Batch[pa.Table]] = []
    source = DeltaSource({"path": str(log.path), "batch_bytes": BATCH, **options})
    source.run(Position(), batches.append, threading.Event(), once=True)
    source.close()
    return [
        list(zip(*b.frame.select(["partition", "offset"]).to_pydict().values(), strict=True)) for b in batches if b.records
    ]


def test_each_row_of_a_long_file_is_read_once(log: RecordedLog, read: list[int]) -> None:
    """However many batches it is, also where the first of them turns out to be too long; and batches are well filled."""
    places = [(0, offset) for offset in range(2_000)]
    log.append(records(places))
    batches = list_offsets(log)
    assert [place for batch in batches for place in batch] == places
    assert sum(read) == 2_000 and len(batches) <= 1.3 * 2_000 * 204 / BATCH


@pytest.mark.parametrize("held", [64_000_000, 0])
def test_rows_in_any_order_are_read_once(
    log: RecordedLog, read: list[int], monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """Of two partitions; rows are kept for later windows, or read again."""
    monkeypatch.setattr(delta_source, "HELD_BYTES", held)
    places = [(partition, offset) for partition in (0, 1) for offset in range(150)]
    log.append(records(places))
    table = DeltaTable(str(log.path))
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    order = random.Random(3).sample(range(300), 300)
    write_deltalake(table, table.to_pyarrow_table().take(order), mode="overwrite")
    batches = list_offsets(log)
    assert len(batches) > 3 and sorted(place for batch in batches for place in batch) == places
    for partition in (0, 1):
        mine = [offset for batch in batches for p, offset in batch if p == partition]
        assert mine == [*range(150)]
    assert (sum(read) == 300) == bool(held)


def test_catch_up_reads_the_same_files_as_the_stream(log: RecordedLog) -> None:
    """From an earlier position, between two windows of the stream."""
    places = [(0, offset) for offset in range(500)]
    log.append(records(places))
    source = DeltaSource({"path": str(log.path), "batch_bytes": BATCH})
    seen: list[int] = []

    def also(batch: Batch[pa.Table]) -> None:
        again: list[int] = []
        if batch.records:
            seen.extend(batch.frame["offset"].to_pylist())
            start = Position({TopicPartition(TOPIC, 0): 0})
            source.read(start, batch.span.end, lambda b: again.extend(b.frame["offset"].to_pylist()), threading.Event())
            assert again == seen

    source.run(Position(), also, threading.Event(), once=True)
    assert seen == [*range(500)]


@pytest.mark.parametrize(
    ("since", "until", "kept"),
    [(None, None, [1, 2, 3, None]), (2, None, [2, 3, None]), (None, 2, [1, 2, None]), (2, 2, [2, None])],
)
def test_period_includes_its_bounds_and_records_without_a_time(
    since: int | None, until: int | None, kept: list[Any]
) -> None:
    times = pa.table({"ts": pa.array([1_000_000, 2_000_000, 3_000_000, None], pa.timestamp("us", "UTC"))})
    bounds = (bound and datetime.fromtimestamp(bound, UTC) for bound in (since, until))
    assert [at and at.timestamp() for at in Period(*bounds).filter_rows(times)["ts"].to_pylist()] == kept
