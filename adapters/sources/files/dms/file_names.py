"""Names of DMS files and folders."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from replicator.domain.errors import ConfigProblem

from ....decoders.common.dms_rows import CDC, FIRST_CHANGE, LOAD, LOAD_BITS, ROW_BITS, TRANSACTIONS
from ..file_list import FilePath

ENDINGS = (".csv", ".csv.gz", ".parquet")
_ENDING = r"(?:\.csv(?:\.gz)?|\.parquet)"
_LOAD = re.compile(rf"LOAD0*([0-9A-Fa-f]{{1,7}}){_ENDING}")
_CDC = re.compile(rf"({TRANSACTIONS})?(\d{{8}})-?(\d{{6}})(\d{{3,6}}){_ENDING}")
_DATE = re.compile(r"\d{2}|\d{4}|\d{6}|\d{8}|\d{10}|\d{2,4}([_-]\d{2,4}){1,3}")
"""A date folder of DMS (`DatePartitionEnabled`), in any order and with any separator."""
CDC_BITS = ROW_BITS
"""Bits of the row number in a file of changes; for full loads see `LOAD_BITS`. DMS starts a new file of changes at 32 MB
by default. With two million rows per file, times fit until the year 2109."""


LISTED = 2**17
"""Cached names: folders are listed every second."""


class DmsFileName(NamedTuple):
    """A parsed file name.

    It has the kind, the offset before the first row, the limit for row numbers, and the time in milliseconds. A flag shows
    if the file contains transactions of several tables.
    """

    kind: str
    first: int
    most: int
    time: int | None
    of_transactions: bool = False


@lru_cache(LISTED)
def parse_name(path: FilePath) -> DmsFileName:
    """The parsed name of the file at `path`. Raises ConfigProblem for an unknown name."""
    if found := _LOAD.fullmatch(path.name):
        return DmsFileName(LOAD, int(found[1], 16) << LOAD_BITS, 1 << LOAD_BITS, None)
    if found := _CDC.fullmatch(path.name):
        try:
            moment = datetime.strptime(found[2] + found[3], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
            time = int(moment.timestamp()) * 1000 + int(found[4][:3])
        except ValueError:
            time = 0
        if time << CDC_BITS >= FIRST_CHANGE:
            return DmsFileName(CDC, time << CDC_BITS, 1 << CDC_BITS, time, found[1] is not None)
    raise ConfigProblem(
        f"{path} is no file of AWS DMS: its name is neither like LOAD00000001.csv nor like 20211017-194324349.csv",
        next_step="Move it to another place, or let `path` of the source name DMS's own folders.",
    )


def first_offset(path: FilePath) -> int:
    """The offset before the first row, which orders the files of a table."""
    return parse_name(path).first


def max_rows(path: FilePath) -> int:
    """The limit for row numbers."""
    return parse_name(path).most


@lru_cache(LISTED)
def find_table(path: FilePath) -> str:
    """`SCHEMA.TABLE` from the last two folders above a file; for changes, date folders at the end are skipped. Empty for
    a transaction file, which contains several tables."""
    if path.name.startswith(TRANSACTIONS):
        return ""
    folders = list(path.absolute().parts[1:-1])
    while _CDC.fullmatch(path.name) and len(folders) > 2 and _DATE.fullmatch(folders[-1]):
        folders.pop()
    return ".".join(folders[-2:])
