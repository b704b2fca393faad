"""What the files of snapshots are: Parquet, or text with declared columns."""

from __future__ import annotations

from os import SEEK_END
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from replicator.domain.errors import DataLoss

MAGIC = 4
"""Bytes at the begin of a Parquet file, and at its end."""


class Form(Protocol):
    """A kind of file. `suffixes`: how names of its files end, the usual one first. `settles`: whether a file says nothing
    about being whole."""

    name: str
    suffixes: tuple[str, ...]
    settles: bool

    def read(self, file: Path) -> pa.Table | None:
        """The rows of one file; None where it says that it is not whole. Raises OSError, and DataLoss for what cannot be
        read as what it should be, naming file, row and column, never a value."""


class Parquet:
    """`Form` of Parquet files."""

    name = "Parquet"
    suffixes: tuple[str, ...] = (".parquet",)
    settles = False

    def read(self, file: Path) -> pa.Table | None:
        """See `Form`: whole once its footer, the last thing in it, is written."""
        if not _has_footer(file):
            return None
        try:
            return pq.read_table(file)
        except pa.ArrowException:
            if not _has_footer(file):
                return None  # Begun anew meanwhile.
            raise DataLoss(f"{file} {_what_is_wrong(file)}.", next_step="Write the snapshot anew, or remove it.") from None


def _has_footer(file: Path) -> bool:
    with file.open("rb") as stream:
        size = stream.seek(0, SEEK_END)
        stream.seek(max(0, size - MAGIC))
        return size > 2 * MAGIC and stream.read() in (b"PAR1", b"PARE")


def _what_is_wrong(file: Path) -> str:
    try:
        names = pq.read_schema(file).names
    except (pa.ArrowException, OSError):
        names = []
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"has two columns {twice[0]!r}" if twice else "is a whole file and cannot be read as Parquet"


PARQUET: Form = Parquet()
