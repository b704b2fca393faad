"""Rows of CSV files that AWS DMS writes to S3: each record is one row, without its line end.

CSV files of other tools have the format `rows`.

The rules are from the page "Using Amazon S3 as a target for AWS Database Migration Service" of the DMS user guide.

**Records.** The topic is the table (`schema.table`). Header `dms.columns` contains the file's header row, if DMS wrote
one (`AddColumnName`). Header `dms.kind` is `load` for a file of the full load; all others contain ongoing changes.

**Columns** have the names in the header row, in any order. Without a header row they are the declared columns (`schema:`)
in that order, after the operation if the row has one more column. A column has its declared type, otherwise it is text. A
declared column that is missing in the header row is unchanged. The operation is a column of the table only if it is
declared, and bookkeeping columns of Replicator's targets never are.

**Operations.** The first column is `I`, `U` or `D` (`operation_column`, `operations`). Full-load rows without it, or with
an empty one, are reads (`IncludeOpForFullLoad`). Such rows among ongoing changes are rejected, because they may have lost
a column. With `csv.inserts_only` (`CdcInsertsOnly`) they are creates.

**Order.** An offset is the milliseconds in the file's name, shifted by 21 bits, plus the row number. Both are the
elements of the sequence. The time that DMS can add to rows (`TimestampColumnName`) has ties and is an ordinary column.
The time of a change is its record's.

**Values** are read by `adapters.arrow.text_values`. The unquoted text `csv.null_value` is null; in quotes it is text.
`csv.unsent_value` (`CsvNoSupValue`) is an unchanged value in an update, and null otherwise. The same is true of a column
missing in the header row.

**Key changes** are not visible: an update has only the new row. The row with the old key stays, unless DMS deletes it.

**Tables without a header row and a declaration** are ignored: a bucket often contains more tables than a pipeline reads,
and those must be declared. With `csv.header` such records are rejected.

**Rejected** are records with

- another number of columns than the header row or declaration,
- quotes that do not close, or line ends outside of quotes,
- bytes that are not UTF-8,
- the names of the columns in the first row, without `csv.header`,
- a null key, or an unknown operation,
- a value that does not fit the type of its column. In a deleted row, outside the key, it counts as unchanged.
"""

from .decoder import DmsCsvDecoder

__all__ = ["DmsCsvDecoder"]
