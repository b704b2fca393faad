"""The source that asks a database: writes what is new into its journal, and reads that."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from ..rows.source import RowsInProcess
from ..snapshots.source import OfSnapshots
from .intake import QueryIntake
from .options import QueryOptions


class QuerySource(OfSnapshots[pa.Table], RowsInProcess):
    """A `Source` of the rows that a query gives (see the package). Its one topic is called as the table; lanes without a
    position begin with the first rows that were read."""

    def __init__(self, options: Mapping[str, object]) -> None:
        read = QueryOptions.read(options)
        self._intake = QueryIntake(read)
        super().__init__(read.rows(), str(read.journal))
