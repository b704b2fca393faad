"""Rows of the CSV files that AWS DMS writes to S3: each record is one row, without its line end.

The rules are those of the page "Using Amazon S3 as a target for AWS Database Migration Service" of the DMS user guide.

**Records.** The topic is the table (`schema.table`). Header `dms.columns` holds the file's own header row where DMS wrote
one (`AddColumnName`), header `dms.kind` says `load` for a file of the full load; any other is of the ongoing changes.

**Columns** have the names of the header row, in whatever order it has them. Without one they are those that the table
declares (`schema:`), in that order, after the operation where the row has one column more. A column has the type that the
table declares for it, and is text otherwise; one that is declared and not in the header row was not sent. The operation
belongs to the table only where that declares it, and the bookkeeping columns of a target of ours never do.

**Operations.** The first column is `I`, `U` or `D` (`operation_column`, `operations`). Rows of a full load without it,
or in which it is empty, are reads (`IncludeOpForFullLoad`). Of the ongoing changes they are rejects, for a row may have
lost a column; or creates, with `csv_rows.inserts_only` (`CdcInsertsOnly`).

**Order.** Offsets are the milliseconds of the file, shifted by 21 bits, plus the number of the row. These are the two
elements of the sequence; the time that DMS can add to rows (`TimestampColumnName`) has ties and is a column as any other.
The time of a change is its record's.

**Values** are written as the module `values` says. The unquoted text `csv_rows.null_value` is null, the same text in
quotes is text. `csv_rows.unsent_value` (`CsvNoSupValue`) stands for a value that was not sent, in an update; otherwise it
is null. A column that the header row lacks is the same.

**A changed key** cannot be seen: an update has the row after it only. The old key's row stays, unless DMS deletes it.

**Tables without a header row and a declaration** are ignored: a bucket holds more than one pipeline asks for, and those that
it asks for have to be declared. With `csv_rows.header` such records are rejects.

**What makes a record a reject**: another number of columns than its header row or declaration has, quotes that do not
close or line ends outside of them, bytes that are not UTF-8, a first row with the names of the columns and no
`csv_rows.header`, a null key, an operation that is not known, a value that its column's type cannot hold. Such a value of a
deleted row, outside its key, counts as not sent.
"""

from .decoder import DmsCsvDecoder

__all__ = ["DmsCsvDecoder"]
