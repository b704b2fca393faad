"""What the files of snapshots are: Parquet, or text with declared columns."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq


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
        """See `Form`: readable only once its footer, the last thing in it, is written."""
        try:
            return pq.read_table(file)
        except pa.ArrowInvalid:
            return None


PARQUET: Form = Parquet()
