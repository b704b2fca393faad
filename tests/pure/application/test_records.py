"""Records of batches that are kept for rejects of sinks."""

from __future__ import annotations

import pyarrow as pa
import pytest

from replicator.application.delivery.bounded_queue import BatchRecords, RecordFrame, RecordFrames
from replicator.domain.change import RAW
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Batch

AT = TopicPartition("t", 0)


def batch_of(start: int, rows: int = 200) -> Batch[pa.Table]:
    columns = {
        "topic": ["t"] * rows,
        "partition": [0] * rows,
        "offset": range(start, start + rows),
        "timestamp": [None, *[1_000] * (rows - 1)],
        "headers": [None, *[[{"name": "h", "value": b"\0"}]] * (rows - 1)],
        "key": [None, *[b"key"] * (rows - 1)],
        "value": [None, *[b"a long and boring value" * 40] * (rows - 1)],
    }
    frame = pa.table({f.name: pa.array(columns[f.name]).cast(f.type) for f in RAW}, RAW)
    span = Span(Position({AT: start}), Position({AT: start + rows}))
    return Batch(frame, span, rows, frame.nbytes)


def test_packed_records_are_equal_and_smaller() -> None:
    batch = batch_of(5)
    kept = BatchRecords[pa.Table](packed=True).get_records(batch)
    assert kept.frame.equals(batch.frame) and kept.frame.schema.equals(RAW)
    assert kept.size < batch.size / 4
    assert kept.frame is not batch.frame


def test_unpacked_records_are_the_frame() -> None:
    batch = batch_of(5)
    kept = BatchRecords[pa.Table](packed=False).get_records(batch)
    assert kept.frame is batch.frame and kept.size == batch.size


def test_frames_without_arrow_stay_unchanged() -> None:
    batch = Batch(("a", "b"), batch_of(0).span, 2, 10)
    kept = BatchRecords[tuple[str, ...]](packed=True).get_records(batch)
    assert kept.frame is batch.frame and kept.size == 10


def test_several_tables_share_the_records_of_a_batch() -> None:
    keeping, first = BatchRecords[pa.Table](packed=True), batch_of(0)
    one, other = keeping.get_records(first), keeping.get_records(first)
    third = keeping.get_records(batch_of(200))
    assert one is other and third is not one
    frames = RecordFrames([one, third])
    assert [frame["offset"][0].as_py() for frame in frames] == [0, 200] and len(frames[1:]) == 1


def test_records_are_packed_while_their_batch_is_applied() -> None:
    keeping, batch = BatchRecords[pa.Table](packed=True), batch_of(0)
    keeping.begin(batch)
    kept = keeping.get_records(batch)
    assert kept is keeping.get_records(batch) and kept.frame.equals(batch.frame)
    keeping.begin(batch_of(200))
    assert keeping.get_records(batch_of(200)).frame["offset"][0].as_py() == 200


def test_error_of_packing_is_raised_when_the_records_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(RecordFrame, "pack", no_room)
    keeping, batch = BatchRecords[pa.Table](packed=True), batch_of(0)
    keeping.begin(batch)
    with pytest.raises(MemoryError):
        keeping.get_records(batch)
