"""Names of files and folders with rows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from replicator.domain.errors import ConfigProblem

from ....decoders.common.line_offsets import ROW_BITS
from ...file_versions import find_version_digits
from ..file_list import ArchiveFile, FilePath

SUFFIXES = {"csv": (".csv", ".csv.gz"), "jsonl": (".jsonl", ".jsonl.gz"), "parquet": (".parquet",)}
ENDINGS = tuple(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
MOST_DIGITS, MOST = 10, 1 << (63 - ROW_BITS)
TIMES = {12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
LISTED = 2**17
"""Cached names: folders are listed every second."""


class FileNumber(NamedTuple):
    """The order of a file in its table. `shape`: the widths of its digit groups, None without digits. Numbers of one
    group may have any width."""

    number: int
    shape: tuple[int, ...] | None


@lru_cache(LISTED)
def parse_number(path: FilePath) -> FileNumber:
    """The number of the file at `path`. Raises ConfigProblem for invalid digits."""
    parts = find_version_digits(path.name, ENDINGS)
    digits, widths = "".join(parts), tuple(map(len, parts))
    if not digits:
        return FileNumber(0, None)
    number = _to_seconds(digits) if len(digits) in TIMES else int(digits) if len(digits) <= MOST_DIGITS else None
    if number is None or not 0 <= number < MOST:
        raise ConfigProblem(
            f"The name of {path} ends in digits that are no number below {MOST:,} and no time",
            next_step="Name files like 000012.csv, 2024-01-05.csv or 20240105T103000.csv.",
        )
    return FileNumber(number, widths if len(parts) > 1 or len(digits) in TIMES else ())


def _to_seconds(digits: str) -> int | None:
    try:
        return int(datetime.strptime(digits, TIMES[len(digits)]).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None


def first_offset(path: FilePath) -> int:
    """The offset before line 1 of the file at `path`."""
    return parse_number(path).number << ROW_BITS


def max_rows(_: FilePath) -> int:
    """The limit for line numbers in a file."""
    return 1 << ROW_BITS


def find_table(path: FilePath) -> str:
    """The folder of the file."""
    return path.absolute().parts[-2]


def refuse_unordered(files: Iterable[ArchiveFile]) -> None:
    """Raise ConfigProblem for two files of a table whose names do not define their order."""
    seen: dict[tuple[str, int], ArchiveFile] = {}
    shapes: dict[str, tuple[tuple[int, ...], ArchiveFile]] = {}
    for file in files:
        table, (number, shape) = find_table(file.path), parse_number(file.path)
        other = seen.setdefault((table, number), file)
        if shape is not None:
            known, first = shapes.setdefault(table, (shape, file))
            other = first if known != shape else other
        if other is not file:
            raise ConfigProblem(
                f"The names of {other.path} and {file.path} do not say which of them comes first",
                next_step="Let names of a table end in numbers, or in times with as many digits in each: 2024-01-05, not "
                "2024-1-5.",
            )
