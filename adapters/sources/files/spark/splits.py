"""Files cut into the pieces that executors read, each in one task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..avro_files import AVRO
from ..file_format import FileFormat
from ..file_list import ArchiveFile
from ..file_reader import open_parquet

SMALLEST = 1024 * 1024
EXPANDS = 10
"""How many times larger than the file a compressed one is taken to be, before it was read."""


@dataclass(frozen=True, slots=True)
class FileSplit:
    """What one task reads of `file`: the lines that begin in [start, end), or, of a Parquet file, the row groups `groups`.

    Lines are numbered from byte `begun`, before which there are `lines` of them. `weight`: about so many bytes in memory.
    """

    file: ArchiveFile
    start: int
    end: int
    begun: int
    lines: int
    weight: int
    groups: tuple[int, ...] = ()


def split_file(form: FileFormat, file: ArchiveFile, begun: int, lines: int, size: int) -> Iterator[FileSplit]:
    """What is new in `file`, in pieces of about `size` bytes where it can be cut."""
    # An executor has a working folder of its own.
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
    """Consecutive pieces of at most so many bytes together, or one that alone has more."""
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
