"""Pieces read by executors, and their facts on the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ....spark.errors import translated
from ....spark.frames import column, flat_mapped
from ..form import Form
from ..listing import ArchiveFile
from ..reading import Progress, say_unfinished, unusable
from .pieces import SMALLEST, Piece, cut
from .scan import CHUNK, FACTS, IN_PIECE, Facts, Limits

TASKS = 8
"""Tasks per core: small files share them."""


class Chunk(NamedTuple):
    """A chunk as the driver knows it: its number in the frame, its piece, its facts."""

    number: int
    piece: Piece
    facts: Facts


class Moved(Exception):
    """Files that are not what they were when they were listed."""

    def __init__(self, labels: Iterable[str]) -> None:
        super().__init__(*labels)
        self.labels = frozenset(labels)


def scanned(
    spark: SparkSession,
    pieces: Sequence[Piece],
    scan: Callable[[int, Piece, Limits], Iterator[pa.Table]],
    limits: Limits,
    schema: pa.Schema,
) -> DataFrame:
    """What `scan` makes of each piece, on the executors, in order. The driver hands them the plan only."""

    def tables(numbers: pa.Table) -> Iterator[pa.Table]:
        for number in numbers["id"].to_pylist():
            yield from scan(number, pieces[number], limits)

    tasks = min(len(pieces), TASKS * spark.sparkContext.defaultParallelism)
    return flat_mapped(spark.range(0, len(pieces), 1, tasks), tables, schema)


def facts_of(frame: DataFrame, pieces: Sequence[Piece]) -> list[Chunk]:
    """The facts in a scanned frame, in order. Raises Moved, or EnvironmentProblem naming the file that cannot be read."""
    try:
        found = frame.filter(column(FACTS).isNotNull()).select(CHUNK, FACTS).collect()
    except (Py4JError, PySparkException) as error:
        _refuse_moved(pieces)
        raise translated(error, "reading files") from error
    _refuse_moved(pieces)
    chunks = [Chunk(n, pieces[n // IN_PIECE], msgspec.msgpack.decode(facts, type=Facts)) for n, facts in found]
    return sorted(chunks, key=lambda chunk: chunk.number)


def _refuse_moved(pieces: Iterable[Piece]) -> None:
    files = {piece.file.label: piece.file for piece in pieces}
    moved = [label for label, file in files.items() if file.is_replaced]
    if moved:
        raise Moved(moved)


class Plan:
    """What is new in files, in pieces, and how far they were read."""

    def __init__(self, form: Form, size: int) -> None:
        self._form, self._size = form, max(SMALLEST, size)
        self._progress = Progress(growing=form.growing)
        self._files: dict[str, tuple[ArchiveFile, int, int]] = {}

    def pieces(self, files: Iterable[ArchiveFile]) -> list[Piece]:
        """Of every file that has grown or appeared, in their order."""
        self._files = {}
        return [piece for file in files for piece in self._of(file)]

    def _of(self, file: ArchiveFile) -> list[Piece]:
        begun = self._progress.begin(file)
        if begun is None:
            return []
        try:
            found = list(cut(self._form, file, *begun, self._size))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unusable(file, error) from error
        self._files[file.label] = (file, *begun)
        return found

    def read(self, chunks: Iterable[Chunk]) -> None:
        """Chunks in order, every piece of theirs in whole."""
        last = {chunk.piece: chunk.facts for chunk in chunks}
        for piece, facts in last.items():
            file, _, lines = self._files[piece.file.label]
            if facts.lines:
                self._files[piece.file.label] = (file, facts.at, lines + facts.lines)
            if facts.unfinished:
                say_unfinished(file, lines + facts.lines + 1)

    def close(self, *, without: Iterable[str] = ()) -> None:
        """Every piece was read, but of files that moved: these are looked at anew."""
        for label in self._files.keys() - set(without):
            self._progress.end(*self._files[label])
