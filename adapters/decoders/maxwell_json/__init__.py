"""Maxwell's messages in JSON.

`{"database":"shop","table":"items","type":"update","ts":1700000000,"xid":7,"commit":true,"data":{"id":1,"name":"a"},
"old":{"name":"b"}}`

`data` is the row, or the deleted row; `old` has the columns that an update changed, with their old values. Source:
maxwells-daemon.io, "Maxwell's data format", and recorded messages.

**Tables** are `database.table`. **Types** are not in the messages: declare the columns (`schema:`). Numbers, booleans and
text are read as the declared type, an array or object as its JSON text, binary values as Base64. **The key** is the one
in the configuration, or `primary_key_columns` if Maxwell writes them (`output_primary_key_columns=true`).

| `type` | |
| --- | --- |
| insert, update, delete | changes; an update with a key column in `old` is a key change |
| bootstrap-insert | a read |
| bootstrap-start, bootstrap-complete | ignored |
| table-drop | ignored, and reported as a dropped table; its `ts` has milliseconds |
| table-create, table-alter, database-... | ignored: schema changes |

**Order** is that of the stream, the offset: `xid` and `xoffset` only order changes of one server. So all messages of a
table must be in one partition (`producer_partition_by`: database or table), or all messages of a key if keys never
change.
"""

from .decoder import MaxwellJsonDecoder

__all__ = ["MaxwellJsonDecoder"]
