"""Selection of files to read, for files whose names define their order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from replicator.domain.position import Position, TopicPartition

from ..file_list import ArchiveFile, FilePath
from ..offset_index import OffsetIndex

OF_ANY = ""
"""The table of transaction files: see `dms.file_names.find_table`."""


class Naming(NamedTuple):
    """Functions of file names: the partition (a table has one), the offset before the first row, and the limit for row
    numbers. `before`: the number of files to read before those with new content."""

    place_of: Callable[[FilePath], TopicPartition]
    first_of: Callable[[FilePath], int]
    most_of: Callable[[FilePath], int]
    before: int = 0

    @classmethod
    def for_tables(
        cls, table_of: Callable[[FilePath], str], first_of: Callable[[FilePath], int], most_of: Callable[[FilePath], int]
    ) -> Naming:
        """The naming of files of tables."""
        return cls(lambda path: TopicPartition(table_of(path), 0), first_of, most_of)


def select_beyond(files: list[ArchiveFile], start: Position, naming: Naming) -> list[ArchiveFile]:
    """The ordered `files` that may have rows from `start` on. A file was read if its table's position is above the start
    of the next file."""
    kept: list[ArchiveFile] = []
    following: dict[TopicPartition, int] = {}
    left: dict[TopicPartition, int] = {}
    for file in reversed(files):
        place = naming.place_of(file.path)
        after, position = following.get(place), start.get(place)
        if place.topic == OF_ANY or after is None or position is None or position <= after:
            kept.append(file)
        elif left.setdefault(place, naming.before):
            kept.append(file)
            left[place] -= 1
        following[place] = naming.first_of(file.path)
    return kept[::-1]


def select_through(files: list[ArchiveFile], names: Collection[str], naming: Naming) -> list[ArchiveFile]:
    """The ordered `files` with these names (labels or whole paths), and the files of the same tables before them. If a
    transaction file is named, these are the files of all tables."""
    last: dict[TopicPartition, int] = {}
    for file in files:
        if file.label in names or str(file.path) in names:
            last[naming.place_of(file.path)] = naming.first_of(file.path)
    of_any = last.get(TopicPartition(OF_ANY, 0), -1)
    return [file for file in files if naming.first_of(file.path) <= max(last.get(naming.place_of(file.path), -1), of_any)]


def summarise(known: OffsetIndex, files: Iterable[ArchiveFile], naming: Naming) -> OffsetIndex:
    """`known`, updated with the ordered `files`. For each partition only the first and last file with rows are read; all
    files are read if some contain several tables."""
    by_place: dict[TopicPartition, list[ArchiveFile]] = {}
    for file in files:
        by_place.setdefault(naming.place_of(file.path), []).append(file)
    if TopicPartition(OF_ANY, 0) in by_place:
        return known.update(sorted((f for some in by_place.values() for f in some), key=lambda f: naming.first_of(f.path)))
    while by_place:
        known.update([file for some in by_place.values() for file in dict.fromkeys((some[0], some[-1]))])
        by_place = {place: rest for place, some in by_place.items() if (rest := _inner_files(known, place, some, naming))}
    return known


def _inner_files(known: OffsetIndex, place: TopicPartition, files: list[ArchiveFile], naming: Naming) -> list[ArchiveFile]:
    """`files` without empty files at both ends; empty if neither end is empty."""
    beyond_first = naming.first_of(files[0].path) + naming.most_of(files[0].path)
    has_first = known.firsts.get(place, beyond_first) < beyond_first
    has_last = known.ends.get(place, 0) > naming.first_of(files[-1].path)
    return [] if has_first and has_last else files[0 if has_first else 1 : len(files) if has_last else -1]
