"""What the names of files and folders say."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from replicator.domain.errors import ConfigProblem

from ....arrow.dms import CDC, LOAD, ROW_BITS

_LOAD = re.compile(r"LOAD0*([0-9A-Fa-f]{1,7})\.csv(\.gz)?")
_CDC = re.compile(r"(\d{8})-(\d{6})(\d{3,6})\.csv(\.gz)?")
_DATE = re.compile(r"\d{2}|\d{4}|\d{6}|\d{8}|\d{10}|\d{2,4}([_-]\d{2,4}){1,3}")
"""One folder of those that DMS makes of a date (`DatePartitionEnabled`), in any of its orders and separators."""
LOAD_BITS, CDC_BITS = 32, ROW_BITS
"""A file has fewer rows than 2 to the power of these. DMS begins a new file of changes with 32 MB, by default; with two
million rows in one, times fit until the year 2109."""
FIRST_YEAR = 2005
"""From then on every time is above every number of a full load, 2**28 files of 2**32 lines."""


LISTED = 2**17
"""Names that are kept: folders are listed every second."""


class Named(NamedTuple):
    """What a file is by its name: the kind, the offset of what would be its row 0, below which number rows are, and its time
    in milliseconds."""

    kind: str
    first: int
    most: int
    time: int | None


@lru_cache(LISTED)
def named(path: Path) -> Named:
    """What the file at `path` is; ConfigProblem when its name says nothing that is known."""
    if found := _LOAD.fullmatch(path.name):
        return Named(LOAD, int(found[1], 16) << LOAD_BITS, 1 << LOAD_BITS, None)
    if found := _CDC.fullmatch(path.name):
        try:
            moment = datetime.strptime(found[1] + found[2], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
        except ValueError:
            moment = None
        if moment is not None and moment.year >= FIRST_YEAR:
            time = int(moment.timestamp()) * 1000 + int(found[3][:3])
            return Named(CDC, time << CDC_BITS, 1 << CDC_BITS, time)
    raise ConfigProblem(
        f"{path} is no file of AWS DMS: its name is neither like LOAD00000001.csv nor like 20211017-194324349.csv",
        next_step="Move it to another place, or let `path` of the source name DMS's own folders.",
    )


@lru_cache(LISTED)
def table_of(path: Path) -> str:
    """`SCHEMA.TABLE` after the last two folders above a file; above one of changes, but for folders of dates at the end."""
    folders = list(path.absolute().parts[1:-1])
    while _CDC.fullmatch(path.name) and len(folders) > 2 and _DATE.fullmatch(folders[-1]):
        folders.pop()
    return ".".join(folders[-2:])
