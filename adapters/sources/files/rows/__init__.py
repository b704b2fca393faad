"""Folders of files with rows, CSV, JSON Lines or Parquet, read as one topic per table: what decoder `rows` takes.

**Names.** The table is called as the folder that a file lies in. The digits at the end of a file's name, before its ending,
are its number (`000012.jsonl`, `employees-2024-01-05.csv`) or its time (12 or 14 digits, `20240105T103000.csv.gz`): so are
files of a table ordered. One of them may have none: it is the first. Names that begin with `.` or `_` are passed over.

**Records.** One per row: topic is the table, partition 0, the file's last write as time. The value is a JSON object: the
line of JSON Lines as it is; of CSV the text of every cell by its name in the header row, null for the text that means NULL,
and without a cell that holds the text that means that it was not sent; of Parquet the row with the types of its columns, as
those of `transport: delta`.

**Order.** The offset is the file's number, or its time in seconds, times 2**30, plus the number of the line in its file,
from 1 and with the header. What is written once, what comes too late and what is not complete yet is as
for the files of DMS (`..once`).

A row of CSV that cannot be read comes as a record with its bytes, and with the reason in a header
(`replicator.domain.change.ERROR_HEADER`).
"""

from .source import RowsFilesCheck, RowsFilesSource

__all__ = ["RowsFilesCheck", "RowsFilesSource"]
