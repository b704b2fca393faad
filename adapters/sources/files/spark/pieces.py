"""Files cut into the pieces that executors read, each in one task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..avro import AVRO
from ..form import Form
from ..listing import ArchiveFile
from ..reading import parquet

SMALLEST = 1024 * 1024
EXPANDS = 10
"""How many times larger than the file a compressed one is taken to be, before it was read."""


@dataclass(frozen=True, slots=True)
class Piece:
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


def cut(form: Form, file: ArchiveFile, begun: int, lines: int, size: int) -> Iterator[Piece]:
    """What is new in `file`, in pieces of about `size` bytes where it can be cut."""
    # An executor has a working folder of its own.
    file = replace(file, path=file.path.absolute())
    if file.name.endswith(".parquet"):
        yield from _groups(form, file, size)
    elif file.name.endswith((".gz", AVRO)):
        yield Piece(file, 0, file.size, 0, 0, file.size * EXPANDS)
    elif not form.divisible:
        yield Piece(file, begun, file.size, begun, lines, file.size - begun)
    else:
        for start in range(begun, file.size, size):
            end = min(start + size, file.size)
            yield Piece(file, start, end, begun, lines, end - start)


def _groups(form: Form, file: ArchiveFile, size: int) -> Iterator[Piece]:
    reader = parquet(file, form)
    if reader is None:
        return
    groups: list[int] = []
    weight = 0
    for number in range(reader.num_row_groups):
        groups.append(number)
        weight += reader.metadata.row_group(number).total_byte_size
        if weight >= size:
            yield Piece(file, 0, 0, 0, 0, weight, tuple(groups))
            groups, weight = [], 0
    if groups:
        yield Piece(file, 0, 0, 0, 0, weight, tuple(groups))


def waves(pieces: Iterable[Piece], most: int) -> Iterator[list[Piece]]:
    """Consecutive pieces of at most so many bytes together, or one that alone has more."""
    wave: list[Piece] = []
    weight = 0
    for piece in pieces:
        if wave and weight + piece.weight > most:
            yield wave
            wave, weight = [], 0
        wave.append(piece)
        weight += piece.weight
    if wave:
        yield wave
