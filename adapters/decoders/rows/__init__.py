"""Rows with an operation and a sequence: each record is one JSON object.

The operation stands in a column of the row (`operation_column`) and means what `operations` says; what orders the changes
stands in one to four columns of whole numbers (`sequence_columns`), compared from left to right. The defaults are those of
the records of `transport: delta`, so these need none of it:

`{"schema":{"id":"int64","at":"timestamp[us]"},"payload":{"_op":"u","_version":7,"_order":1,"_row":0,"id":1,"at":"..."}}`

Without columns for the order (`sequence_columns: []`) it is that of the offsets. With `inserts_only` a row without
an operation is a new one, and with `tombstones: delete` a null value is a delete of its key, where the offset is the order
and the table declares key and columns (`tombstones`). With `text_values` every value is text, as rows of CSV have it
(`adapters.arrow.text_values`).

**Types.** A record may carry them, as above; otherwise the table declares its columns (`schema:`), and others are left out.
A schema of another kind than this is passed over where the table declares its columns. How types and values are spelt says
`adapters.decoders.json.type_names`. The columns of operation and sequence belong to the table only where it declares them,
and the bookkeeping columns of a target of ours never do.

**Tables.** A record is of the table that its topic is named after; the key is the one in the configuration. Other null
values are tombstones, which are ignored. The time of a change is its record's.

**Values that a row lacks** were not sent, in an update; otherwise they are null. `_before` holds the columns that an update
changed, with the values they had. Where one of the key is among them the change is a delete of the old key and a create of
the new one. Within a version such deletes come first (`_order` 0), whatever the order of rows: two rows may exchange their
keys.

**Values without a place** make the record a reject; in a deleted row outside its key they count as not sent.
"""

from .decoder import RowsDecoder

__all__ = ["RowsDecoder"]
