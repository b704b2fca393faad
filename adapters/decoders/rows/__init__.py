"""Rows with an operation and a sequence: each record is one JSON object.

The operation is in a column of the row (`operation_column`); `operations` defines its values. The sequence is in one to
four integer columns (`sequence_columns`), compared from left to right. The defaults match records of `transport: delta`,
which need no options:

`{"schema":{"id":"int64","at":"timestamp[us]"},"payload":{"_op":"u","_version":7,"_order":1,"_row":0,"id":1,"at":"..."}}`

- `sequence_columns: []`: offsets order the rows.
- `inserts_only`: a row without an operation is a create.
- `tombstones: delete`: a null value is a delete of its key. Offsets order the rows, and the table must declare key and
  columns (see `decoder.TombstoneRows`).
- `text_values`: every value is text, as in CSV (`adapters.arrow.text_values`).

**Types.** A record may contain them, as above; otherwise declare the columns (`schema:`), and others are left out.
Schemas of another form are ignored if the columns are declared. `adapters.decoders.json.type_names` defines the names of
types and the form of values. Columns of operation and sequence are columns of the table only if declared, and bookkeeping
columns of Replicator's targets never are.

**Tables.** The topic is the table; the key is the one in the configuration. Other null values are tombstones, which are
ignored. The time of a change is its record's.

**Missing values** are unchanged in an update, and null otherwise. `_before` contains the columns that an update changed,
with their old values. If a key column is among them, the change is a delete of the old key and a create of the new one.
Within a version such deletes come first (`_order` 0), in any order of rows, because two rows may exchange their keys.

**Values that the column cannot hold** make the record a reject; in a deleted row, outside the key, they count as
unchanged.
"""

from .decoder import RowsDecoder

__all__ = ["RowsDecoder"]
