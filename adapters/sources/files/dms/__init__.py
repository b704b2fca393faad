"""Folders of files that AWS DMS writes to a bucket, CSV or Parquet, read as one topic per table.

**Names** (AWS, "Using Amazon S3 as a target"). Full load: `LOAD00000001.csv`, a hexadecimal number. Changes: their time,
`20211017-194324349.csv`. Both may end with `.gz`, or with `.parquet`. The table is `SCHEMA.TABLE` from the last two
folders above a file; date folders below them are ignored.

**Transaction files** (`CDC_TXN-20211017194324349.csv`) contain several tables: each row names its own. Such a file
follows all full loads. Later files wait until it is complete.

**Records.** One per row: topic `SCHEMA.TABLE`, partition 0, the row's bytes as value (for Parquet see `parquet_format`),
the file's time as time. Headers: `dms.kind` (`load` or `cdc`), and `dms.columns`, the first row of the file, if files
have a header row.

**Order.** A table's full load precedes its changes; changes are ordered by the time of their file, then by row. The
offset of a change is the file's time in milliseconds times 2**21, plus the row number. The offset of a full-load row is
the file's number times 2**32, plus the row number. Row numbers in a file start from 1 and include the header row. A file
that appears below delivered ones in the same run
is a DataLoss that names it. A file that appears below the lanes' positions while nothing runs looks like one that was
read.
"""

from .source import DmsFilesSource

__all__ = ["DmsFilesSource"]
