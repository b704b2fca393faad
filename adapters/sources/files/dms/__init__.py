"""Folders of files as AWS DMS writes them into a bucket, CSV or Parquet, read as one topic per table.

**Names** (AWS, "Using Amazon S3 as a target"). Full load: `LOAD00000001.csv`, a number in hexadecimal. Changes: their time,
`20211017-194324349.csv`. Both may end with `.gz`, or with `.parquet`. The table is `SCHEMA.TABLE` after the last two folders
above a file; folders of dates below them count for nothing.

**Files of transactions** (`CDC_TXN-20211017194324349.csv`) are of several tables: each row names its own. Such a file comes
after all full loads, and holds back what comes later for as long as it is not complete itself.

**Records.** One per row: topic `SCHEMA.TABLE`, partition 0, the row's bytes as value (of Parquet see `parquet`), the file's
time as time. Headers: `dms.kind` (`load` or `cdc`), and `dms.columns`, the first row of the file, where files have a header.

**Order.** A table's full load comes before its changes, changes come by the time of their file, rows by their place in it.
The offset says so: of changes the file's time in milliseconds times 2**21, of the full load its number times 2**32, plus the
number of the row in its file, from 1 and with the header. A file that turns up below what was delivered in the same run is a
DataLoss that names it; one that turns up while nothing runs, below where the lanes stand, cannot be told from one that was
read.
"""

from .source import DmsFilesSource

__all__ = ["DmsFilesSource"]
