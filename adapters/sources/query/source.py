"""The query source: writes new rows to its journal, and reads that."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from ..delta_table.source import LocalTableRows
from ..snapshot_diff.source import SnapshotJournalRows
from .options import QueryOptions
from .query_poll import QueryPoller


class QuerySource(SnapshotJournalRows[pa.Table], LocalTableRows):
    """A `Source` of rows from a query (see the package). Its one topic has the name of the table. Lanes without a
    position begin with the first rows that were read."""

    def __init__(self, options: Mapping[str, object]) -> None:
        read = QueryOptions.read(options)
        self._intake = QueryPoller(read)
        super().__init__(read.rows_options(), str(read.journal))
