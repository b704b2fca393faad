"""Archives split into pieces for executors: the same records as a whole read."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adapters.sources.files.delivery import DeliveryProgress
from adapters.sources.files.file_list import ArchiveFile
from adapters.sources.files.file_reader import ArchiveFormat, ArchiveReader
from adapters.sources.files.spark_splits import (
    FileSplit,
    SliceFacts,
    SliceLimits,
    SplitScan,
    find_runs,
    group_splits,
    split_file,
)
from replicator.domain.change import RAW
from replicator.domain.errors import DataLoss, EnvironmentProblem
from replicator.domain.position import TopicPartition

T = TopicPartition("t", 0)
LINES = ["", "   ", "{", "é" * 9, '{"topic": "t"}']

FORM = ArchiveFormat()


def line(random: Random) -> str:
    if random.random() < 0.3:
        return random.choice(LINES)
    record = {"topic": random.choice("tu"), "partition": random.randint(0, 2), "offset": random.randint(0, 9)}
    return json.dumps({**record, "key": None, "value": "é" * random.randint(0, 9)}, ensure_ascii=False)


def whole(file: ArchiveFile) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    ArchiveReader(FORM, lambda record, _: found.append(tuple(record)), lambda *_: None, threading.Event()).read(file)
    return found


def scan_splits(pieces: list[FileSplit], limits: SliceLimits) -> tuple[list[tuple[Any, ...]], list[SliceFacts]]:
    chunks = [chunk for piece in pieces for chunk in SplitScan(FORM, piece, limits).read_slices()]
    rows = [row for records, _, _ in chunks for row in records.to_pylist()]
    for row in rows:
        row["headers"] = row["headers"] and [(h["name"], h["value"]) for h in row["headers"]]
    assert all(records.num_rows <= limits.records for records, _, _ in chunks)
    return [tuple(row.values()) for row in rows], [facts for _, _, facts in chunks]


@pytest.mark.parametrize("seed", range(30))
def test_file_is_the_same_however_it_is_split(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    end = random.choice(["\n", "", '\n{"topic": "t', "\n{}"])
    text = "\n".join(line(random) for _ in range(random.randint(1, 20))) + end
    (tmp_path / "a.jsonl").write_text(text)
    (file,) = FORM.files(str(tmp_path))
    wanted = whole(file)
    for size in (1, 2, 7, 40, 1000):
        pieces = list(split_file(FORM, file, 0, 0, size))
        rows, facts = scan_splits(pieces, SliceLimits(random.randint(1, 5), 50))
        assert rows == wanted, size
        assert [piece.end for piece in pieces[:-1]] == [piece.start for piece in pieces[1:]]
        # The next look begins behind the last whole line.
        at = max((f.at for f in facts if f.lines), default=0)
        unfinished = any(f.unfinished for f in facts)
        assert at == (text.encode().rfind(b"\n") + 1 if unfinished else file.size)


def test_lines_of_a_grown_file_keep_their_numbers(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("{\n" * 3)
    begun = file.stat().st_size
    with file.open("a") as more:
        more.write("\n{\n{\n")
    rows, _ = scan_splits(list(split_file(FORM, FORM.files(str(tmp_path))[0], begun, 3, 2)), SliceLimits(10, 10))
    assert [row[2] for row in rows] == [5, 6]


def test_compressed_file_is_one_piece_and_a_partial_one_is_read(tmp_path: Path) -> None:
    packed = gzip.compress(b"{\n" * 5)
    (tmp_path / "a.jsonl.gz").write_bytes(packed[:-8])
    (piece,) = split_file(FORM, FORM.files(str(tmp_path))[0], 0, 0, 1)
    rows, _ = scan_splits([piece], SliceLimits(2, 100))
    assert [row[2] for row in rows] == [1, 2, 3, 4, 5]


def test_row_groups_are_pieces(tmp_path: Path) -> None:
    rows = [{"topic": "t", "partition": 0, "offset": n, "value": b"v" * 50} for n in range(100)]
    pq.write_table(pa.Table.from_pylist(rows, RAW), tmp_path / "a.parquet", row_group_size=10)
    file = FORM.files(str(tmp_path))[0]
    each, one = list(split_file(FORM, file, 0, 0, 1)), list(split_file(FORM, file, 0, 0, 10**9))
    assert [piece.groups for piece in each] == [(n,) for n in range(10)]
    assert [piece.groups for piece in one] == [tuple(range(10))]
    for pieces in (each, one):
        found, _ = scan_splits(pieces, SliceLimits(7, 10**6))
        assert [row[2] for row in found] == list(range(100))


def test_groups_of_splits_stay_within_a_batch(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_bytes(b"{\n" * 5)
    pieces = [piece for file in FORM.files(str(tmp_path)) for piece in split_file(FORM, file, 0, 0, 4)]
    assert [sum(p.weight for p in wave) for wave in group_splits(pieces, 9)] == [8, 6, 6, 8, 2]
    assert [p for wave in group_splits(pieces, 1) for p in wave] == pieces


def test_truncated_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{\n" * 9)
    pieces = list(split_file(FORM, FORM.files(str(tmp_path))[0], 0, 0, 6))
    (tmp_path / "a.jsonl").write_bytes(b"{\n" * 4)
    with pytest.raises(EnvironmentProblem, match="became shorter"):
        scan_splits(pieces, SliceLimits(9, 99))


@pytest.mark.parametrize("seed", range(30))
def test_checks_of_runs_equal_checks_of_records(seed: int) -> None:
    """One record at a time and by runs: the same records are delivered and refused."""
    random = Random(seed)
    offsets = [random.randint(0, 3)]
    for _ in range(40):
        offsets.append(max(0, offsets[-1] + random.choice([1, 1, 1, 1, 1, 2, 3, -2 if seed % 3 else 1])))
    start = {T: random.randint(0, 6)} if seed % 2 else {}
    until = {T: random.randint(5, 40)} if seed % 5 == 0 else None
    single, several = DeliveryProgress(start, until), DeliveryProgress(start, until)
    for first in range(0, len(offsets), 8):
        chunk = offsets[first : first + 8]
        one: list[int] | str
        many: list[int] | str
        try:
            one = [offset for offset in chunk if single.accept(T, offset, "f")]
        except DataLoss as loss:
            one = str(loss)
        try:
            many = list_taken_offsets(several, chunk)
        except DataLoss as loss:
            many = str(loss)
        assert one == many
        if isinstance(one, str):
            return
        assert (single.next_span(), single.next) == (several.next_span(), several.next)


def list_taken_offsets(delivered: DeliveryProgress, offsets: list[int]) -> list[int]:
    rows = [{"topic": T.topic, "partition": T.partition, "offset": offset} for offset in offsets]
    numbers, stretches = find_runs(pa.RecordBatch.from_pylist(rows, RAW))
    assert [n for n, _ in enumerate(stretches)] == sorted(set(numbers.to_pylist()))
    out: list[int] = []
    for stretch in stretches:
        assert stretch.bounds == sorted(set(stretch.bounds))
        for first, end in zip(stretch.bounds[::2], stretch.bounds[1::2], strict=True):
            out += range(*delivered.accept_range(T, first, end, "f"))
    return out
