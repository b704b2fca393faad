"""Splits of files, and their records. Used on Spark's executors, each of whose tasks reads a split at a time."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator.domain.change import RAW
from replicator.domain.errors import EnvironmentProblem

from .file_list import ArchiveFile
from .file_reader import (
    AVRO,
    FileFormat,
    FileSplit,
    RecordColumns,
    SplitReader,
    open_parquet,
    read_frames,
    unusable_error,
)

EXPANDS = 10
"""The assumed size of a compressed file's content relative to the file."""


def split_file(form: FileFormat, file: ArchiveFile, first: int, lines: int, size: int) -> Iterator[FileSplit]:
    """The new content of `file`, in splits of about `size` bytes if possible."""
    # Executors have other working folders.
    file = replace(file, path=file.path.absolute())
    if file.name.endswith(".parquet"):
        yield from _split_row_groups(form, file, size)
    elif file.name.endswith((".gz", AVRO)):
        yield FileSplit(file, 0, file.size, 0, 0, file.size * EXPANDS)
    elif not form.divisible:
        yield FileSplit(file, first, file.size, first, lines, file.size - first)
    else:
        for start in range(first, file.size, size):
            end = min(start + size, file.size)
            yield FileSplit(file, start, end, first, lines, end - start)


def _split_row_groups(form: FileFormat, file: ArchiveFile, size: int) -> Iterator[FileSplit]:
    reader = open_parquet(file, form)
    if reader is None:
        return
    groups: list[int] = []
    weight = 0
    for number in range(reader.num_row_groups):
        groups.append(number)
        weight += reader.metadata.row_group(number).total_byte_size
        if weight >= size:
            yield FileSplit(file, 0, 0, 0, 0, weight, tuple(groups))
            groups, weight = [], 0
    if groups:
        yield FileSplit(file, 0, 0, 0, 0, weight, tuple(groups))


def group_splits(pieces: Iterable[FileSplit], most: int) -> Iterator[list[FileSplit]]:
    """Groups of consecutive splits with at most `most` bytes, or a single larger one."""
    wave: list[FileSplit] = []
    weight = 0
    for piece in pieces:
        if wave and weight + piece.weight > most:
            yield wave
            wave, weight = [], 0
        wave.append(piece)
        weight += piece.weight
    if wave:
        yield wave


# Work of executors: a split of a file to records and facts for the driver.

CHUNK, STRETCH, FACTS = "_chunk", "_stretch", "_facts"
SPLIT_SCHEMA = pa.schema(
    [*(f.with_nullable(True) for f in RAW), (CHUNK, pa.int64()), (STRETCH, pa.int32()), (FACTS, pa.binary())]
)
"""Records with the number of their slice and run. After the records of a slice follows one row with its facts."""
BOUNDS_SCHEMA = pa.schema([(CHUNK, pa.int64()), (FACTS, pa.binary())])
IN_PIECE = 2**32
"""Numbers of slices per split: slices are numbered within a split, and splits within a frame."""
SHARE = "Put the files into a folder that every machine sees at the same path."


class OffsetRuns(msgspec.Struct, array_like=True):
    """Records of one partition with rising offsets. `bounds`: start and end of each run of offsets without a hole."""

    topic: str
    partition: int
    size: int
    bounds: list[int]


class SliceFacts(msgspec.Struct, array_like=True):
    """The facts of a slice. `at`: the byte position of the next line. `lines`: the lines of the split up to there.
    `unfinished`: the last line is still being written."""

    stretches: list[OffsetRuns]
    at: int = 0
    lines: int = 0
    unfinished: bool = False


class SliceLimits(msgspec.Struct, frozen=True):
    """The limits of a slice: it ends with the record that reaches one of them."""

    records: int
    size: int


class SplitScan:
    """Reads one split, once. Raises EnvironmentProblem on errors, which ends the task. A split is read as a whole or not
    at all, also when it is read again after the loss of an executor."""

    def __init__(self, form: FileFormat, piece: FileSplit, limits: SliceLimits) -> None:
        self._form, self._piece, self._limits = form, piece, limits
        self._reader = SplitReader(form, piece)

    def read_slices(self) -> Iterator[tuple[pa.RecordBatch, pa.Array, SliceFacts]]:
        """The records in slices, with run numbers and facts. The last slice may be empty."""
        file, groups = self._piece.file, self._piece.groups
        try:
            if groups:
                reader = pq.ParquetFile(file.open_parquet())
                batches = read_frames(file, reader, self._form, self._limits.records, groups)
            else:
                batches = self._gather_records()
            for batch in batches:
                numbers, stretches = find_runs(batch)
                yield batch, numbers, SliceFacts(stretches, self._reader.at, self._reader.lines, self._reader.unfinished)
        except FileNotFoundError as error:
            sentence = f"The file {file.path} is not on {socket.gethostname()}, where Spark was to read it."
            raise EnvironmentProblem(sentence, next_step=SHARE) from error
        except OSError as error:
            raise unusable_error(file, error) from error
        except pa.ArrowInvalid as error:
            raise EnvironmentProblem(f"The file {file.path} is damaged: it is no Parquet file any more.") from error

    def _gather_records(self) -> Iterator[pa.RecordBatch]:
        columns, size = RecordColumns(), 0
        for record in self._reader.read_records():
            columns.add(record)
            size += record.size
            if len(columns) >= self._limits.records or size >= self._limits.size:
                yield columns.to_batch()
                columns, size = RecordColumns(), 0
        is_shorter = self._reader.at < self._piece.end and not self._reader.unfinished
        if is_shorter and not self._piece.file.name.endswith((".gz", AVRO)):
            raise EnvironmentProblem(f"The file {self._piece.file.path} became shorter.")
        yield columns.to_batch()


def find_runs(batch: pa.RecordBatch) -> tuple[pa.Array, list[OffsetRuns]]:
    """The run number of each record, and the runs."""
    if not batch.num_rows:
        return pa.array([], pa.int32()), []
    topics = batch.column("topic").dictionary_encode()
    partitions = topics.indices.to_numpy().astype(np.int64) * 2**32 + batch.column("partition").to_numpy()
    order = np.argsort(partitions, kind="stable")
    partitions, offsets = partitions[order], batch.column("offset").to_numpy()[order]
    lengths: list[Any] = [pc.fill_null(pc.binary_length(batch.column(name)), 0).to_numpy() for name in ("key", "value")]
    sizes = np.concatenate(([0], np.cumsum((lengths[0].astype(np.int64) + lengths[1])[order])))
    other, steps = np.diff(partitions) != 0, np.diff(offsets)
    begins = np.concatenate(([True], other | (steps <= 0)))
    # Ranges of offsets without a hole, of which runs consist.
    firsts = np.flatnonzero(np.concatenate(([True], other | (steps != 1))))
    lasts = np.concatenate((firsts[1:], [len(order)])) - 1
    starts = np.concatenate((np.flatnonzero(begins), [len(order)]))
    bounds = np.stack((offsets[firsts], offsets[lasts] + 1), axis=1)
    runs = np.searchsorted(firsts, starts)
    numbers = np.empty(len(order), np.int32)
    numbers[order] = np.cumsum(begins) - 1
    stretches = [
        OffsetRuns(
            topics.dictionary[partitions[a] >> 32].as_py(),
            int(partitions[a] & 0xFFFFFFFF),
            int(sizes[b] - sizes[a]),
            bounds[runs[n] : runs[n + 1]].ravel().tolist(),
        )
        for n, (a, b) in enumerate(pairwise(starts))
    ]
    return pa.array(numbers), stretches


def scan_rows(form: FileFormat, limits: SliceLimits, number: int, piece: FileSplit) -> Iterator[pa.Table]:
    """A split as a table with schema `SPLIT_SCHEMA`. `number` is the split's number in its frame."""
    for at, (batch, numbers, facts) in enumerate(SplitScan(form, piece, limits).read_slices(), number * IN_PIECE):
        of_chunk = pa.repeat(pa.scalar(at), batch.num_rows)
        no_facts = pa.nulls(batch.num_rows, pa.binary())
        yield pa.Table.from_arrays([*batch.columns, of_chunk, numbers, no_facts], schema=SPLIT_SCHEMA)
        yield pa.Table.from_pylist([{CHUNK: at, FACTS: msgspec.msgpack.encode(facts)}], SPLIT_SCHEMA)


def scan_bounds(form: FileFormat, limits: SliceLimits, number: int, piece: FileSplit) -> Iterator[pa.Table]:
    """A split as a table with schema `BOUNDS_SCHEMA`: first offset and end of each partition."""
    hulls: dict[tuple[str, int], tuple[int, int]] = {}
    facts = SliceFacts([])
    for _, _, facts in SplitScan(form, piece, limits).read_slices():
        for stretch in facts.stretches:
            first, end = stretch.bounds[0], stretch.bounds[-1]
            bounds = hulls.get((stretch.topic, stretch.partition), (first, end))
            hulls[stretch.topic, stretch.partition] = min(first, bounds[0]), max(end, bounds[1])
    facts.stretches = [OffsetRuns(topic, partition, 0, list(hull)) for (topic, partition), hull in hulls.items()]
    yield pa.Table.from_pylist([{CHUNK: number * IN_PIECE, FACTS: msgspec.msgpack.encode(facts)}], BOUNDS_SCHEMA)
