"""Which of the files whose names say their order have to be read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from replicator.domain.position import Position, TopicPartition

from ..listing import ArchiveFile, FilePath
from ..summary import Summary

OF_ANY = ""
"""The table of files of transactions: see `names.table_of`."""


class Naming(NamedTuple):
    """What names of files say: the table, the offset of what would be row 0, and below which number rows are."""

    table_of: Callable[[FilePath], str]
    first_of: Callable[[FilePath], int]
    most_of: Callable[[FilePath], int]


def beyond(files: list[ArchiveFile], start: Position, naming: Naming) -> list[ArchiveFile]:
    """Those of `files`, which are in order, that may hold rows from `start` on. A file was read where its table stands
    behind the beginning of the next one."""
    kept: list[ArchiveFile] = []
    following: dict[str, int] = {}
    for file in reversed(files):
        table = naming.table_of(file.path)
        after, position = following.get(table), start.get(TopicPartition(table, 0))
        if table == OF_ANY or after is None or position is None or position <= after:
            kept.append(file)
        following[table] = naming.first_of(file.path)
    return kept[::-1]


def through(files: list[ArchiveFile], names: Collection[str], naming: Naming) -> list[ArchiveFile]:
    """Those of `files`, which are in order, that are named, by their label or their whole path, and what comes before them:
    of their tables, or of all where a file of transactions is named."""
    last: dict[str, int] = {}
    for file in files:
        if file.label in names or str(file.path) in names:
            last[naming.table_of(file.path)] = naming.first_of(file.path)
    of_any = last.get(OF_ANY, -1)
    return [file for file in files if naming.first_of(file.path) <= max(last.get(naming.table_of(file.path), -1), of_any)]


def summarised(known: Summary, files: Iterable[ArchiveFile], naming: Naming) -> Summary:
    """`known`, brought up to date with `files`, which are in order. Of each table the first and the last file with rows are
    read; all where some are of several tables."""
    of_table: dict[str, list[ArchiveFile]] = {}
    for file in files:
        of_table.setdefault(naming.table_of(file.path), []).append(file)
    if OF_ANY in of_table:
        return known.over(sorted((f for some in of_table.values() for f in some), key=lambda f: naming.first_of(f.path)))
    while of_table:
        known.over([file for some in of_table.values() for file in dict.fromkeys((some[0], some[-1]))])
        of_table = {table: rest for table, some in of_table.items() if (rest := _inner(known, table, some, naming))}
    return known


def _inner(known: Summary, table: str, files: list[ArchiveFile], naming: Naming) -> list[ArchiveFile]:
    """`files` without those at their ends that hold no row; none when both ends do."""
    place = TopicPartition(table, 0)
    beyond_first = naming.first_of(files[0].path) + naming.most_of(files[0].path)
    has_first = known.firsts.get(place, beyond_first) < beyond_first
    has_last = known.ends.get(place, 0) > naming.first_of(files[-1].path)
    return [] if has_first and has_last else files[0 if has_first else 1 : len(files) if has_last else -1]
