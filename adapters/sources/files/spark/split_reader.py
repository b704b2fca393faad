"""Splits that executors read, and their facts on the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ....spark.errors import translate_error
from ....spark.frames import column, flat_map_frame
from ..file_format import FileFormat
from ..file_list import ArchiveFile
from ..file_reader import FileProgress, log_unfinished, unusable_error
from .scan import CHUNK, FACTS, IN_PIECE, SliceFacts, SliceLimits
from .splits import SMALLEST, FileSplit, split_file

TASKS = 8
"""Tasks per core: small files share tasks."""


class ScannedSlice(NamedTuple):
    """A slice as the driver sees it: its number in the frame, its split, its facts."""

    number: int
    piece: FileSplit
    facts: SliceFacts


class FilesChanged(Exception):
    """Files that changed since they were listed."""

    def __init__(self, labels: Iterable[str]) -> None:
        super().__init__(*labels)
        self.labels = frozenset(labels)


def scan_splits(
    spark: SparkSession,
    pieces: Sequence[FileSplit],
    scan: Callable[[int, FileSplit, SliceLimits], Iterator[pa.Table]],
    limits: SliceLimits,
    schema: pa.Schema,
) -> DataFrame:
    """The results of `scan` for each split, on the executors, in order. The driver sends only the plan."""

    def tables(numbers: pa.Table) -> Iterator[pa.Table]:
        for number in numbers["id"].to_pylist():
            yield from scan(number, pieces[number], limits)

    tasks = min(len(pieces), TASKS * spark.sparkContext.defaultParallelism)
    return flat_map_frame(spark.range(0, len(pieces), 1, tasks), tables, schema)


def read_facts(frame: DataFrame, pieces: Sequence[FileSplit]) -> list[ScannedSlice]:
    """The facts in a scanned frame, in order. Raises FilesChanged; EnvironmentProblem for an unreadable file."""
    try:
        found = frame.filter(column(FACTS).isNotNull()).select(CHUNK, FACTS).collect()
    except (Py4JError, PySparkException) as error:
        _refuse_changed(pieces)
        raise translate_error(error, "reading files") from error
    _refuse_changed(pieces)
    chunks = [ScannedSlice(n, pieces[n // IN_PIECE], msgspec.msgpack.decode(facts, type=SliceFacts)) for n, facts in found]
    return sorted(chunks, key=lambda chunk: chunk.number)


def _refuse_changed(pieces: Iterable[FileSplit]) -> None:
    files = {piece.file.label: piece.file for piece in pieces}
    moved = [label for label, file in files.items() if file.is_replaced]
    if moved:
        raise FilesChanged(moved)


class SplitPlan:
    """New content of files as splits, with the read positions."""

    def __init__(self, form: FileFormat, size: int) -> None:
        self._form, self._size = form, max(SMALLEST, size)
        self._progress = FileProgress(growing=form.growing)
        self._files: dict[str, tuple[ArchiveFile, int, int]] = {}

    def plan_splits(self, files: Iterable[ArchiveFile]) -> list[FileSplit]:
        """The splits of every file that is new or has grown, in order."""
        self._files = {}
        return [piece for file in files for piece in self._plan_file(file)]

    def _plan_file(self, file: ArchiveFile) -> list[FileSplit]:
        begun = self._progress.begin(file)
        if begun is None:
            return []
        try:
            found = list(split_file(self._form, file, *begun, self._size))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unusable_error(file, error) from error
        self._files[file.label] = (file, *begun)
        return found

    def record_slices(self, chunks: Iterable[ScannedSlice]) -> None:
        """Store the read positions from ordered slices, which must include all slices of their splits."""
        last = {chunk.piece: chunk.facts for chunk in chunks}
        for piece, facts in last.items():
            file, _, lines = self._files[piece.file.label]
            if facts.lines:
                self._files[piece.file.label] = (file, facts.at, lines + facts.lines)
            if facts.unfinished:
                log_unfinished(file, lines + facts.lines + 1)

    def close(self, *, without: Iterable[str] = ()) -> None:
        """Mark all splits as read, except for files that changed, which are read again."""
        for label in self._files.keys() - set(without):
            self._progress.end(*self._files[label])
