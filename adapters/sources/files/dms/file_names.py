"""What the names of files and folders say."""

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
"""One folder of those that DMS makes of a date (`DatePartitionEnabled`), in any of its orders and separators."""
CDC_BITS = ROW_BITS
"""A file has fewer rows than 2 to the power of these, or of `LOAD_BITS`. DMS begins a new file of changes with 32 MB, by
default; with two million rows in one, times fit until the year 2109."""


LISTED = 2**17
"""Names that are kept: folders are listed every second."""


class DmsFileName(NamedTuple):
    """What a file is by its name: the kind, the offset of what would be its row 0, below which number rows are, and its time
    in milliseconds; and whether it holds the changes of several tables."""

    kind: str
    first: int
    most: int
    time: int | None
    of_transactions: bool = False


@lru_cache(LISTED)
def parse_name(path: FilePath) -> DmsFileName:
    """What the file at `path` is; ConfigProblem when its name says nothing that is known."""
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
    """Where the file at `path` lies among those of its table."""
    return parse_name(path).first


def max_rows(path: FilePath) -> int:
    """Below which number its rows are."""
    return parse_name(path).most


@lru_cache(LISTED)
def find_table(path: FilePath) -> str:
    """`SCHEMA.TABLE` after the last two folders above a file; above one of changes, but for folders of dates at the end.
    Empty for a file of transactions, which is of several tables."""
    if path.name.startswith(TRANSACTIONS):
        return ""
    folders = list(path.absolute().parts[1:-1])
    while _CDC.fullmatch(path.name) and len(folders) > 2 and _DATE.fullmatch(folders[-1]):
        folders.pop()
    return ".".join(folders[-2:])
