"""Folders of files with rows (CSV, JSON Lines or Parquet), read as one topic per table, for decoder `rows`.

**Names.** The table has the name of the folder of a file. The digits at the end of a file's name, before its ending, are
its number (`000012.jsonl`, `employees-2024-01-05.csv`) or its time (12 or 14 digits, `20240105T103000.csv.gz`). They
order the files of a table. One file may have none and is the first. Names that begin with `.` or `_` are skipped.

**Records.** One per row: the topic is the table, the partition 0, the time the file's modification time. The value is a
JSON object. For JSON Lines it is the line. For CSV it has the text of each cell by its name in the header row. The text
that means NULL becomes null, and the text that means an unchanged value is left out. For Parquet it is the row with the
types of its columns, as in `transport: delta`.

**Order.** The offset is the file's number, or its time in seconds, times 2**30, plus the line number. Line numbers start
from 1 and include the header row. For changed, late and incomplete files see `immutable.source`, as for files of DMS.

An unreadable CSV row is a record with its bytes, and with the error in a header
(`replicator.domain.change.ERROR_HEADER`).
"""

from .source import RowsFilesCheck, RowsFilesSource

__all__ = ["RowsFilesCheck", "RowsFilesSource"]
