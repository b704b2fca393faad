"""Splits of files, each of which one task reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..file_format import AVRO, FileFormat
from ..file_list import ArchiveFile
from ..file_reader import open_parquet

SMALLEST = 1024 * 1024
EXPANDS = 10
"""The assumed size of a compressed file's content relative to the file."""


@dataclass(frozen=True, slots=True)
class FileSplit:
    """The part of `file` that one task reads: the lines that begin in [start, end), or the row groups `groups` of a
    Parquet file.

    Lines are numbered from byte `begun`, before which there are `lines` lines. `weight`: approximate bytes in memory.
    """

    file: ArchiveFile
    start: int
    end: int
    begun: int
    lines: int
    weight: int
    groups: tuple[int, ...] = ()


def split_file(form: FileFormat, file: ArchiveFile, begun: int, lines: int, size: int) -> Iterator[FileSplit]:
    """The new content of `file`, in splits of about `size` bytes if possible."""
    # Executors have other working folders.
    file = replace(file, path=file.path.absolute())
    if file.name.endswith(".parquet"):
        yield from _split_row_groups(form, file, size)
    elif file.name.endswith((".gz", AVRO)):
        yield FileSplit(file, 0, file.size, 0, 0, file.size * EXPANDS)
    elif not form.divisible:
        yield FileSplit(file, begun, file.size, begun, lines, file.size - begun)
    else:
        for start in range(begun, file.size, size):
            end = min(start + size, file.size)
            yield FileSplit(file, start, end, begun, lines, end - start)


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
