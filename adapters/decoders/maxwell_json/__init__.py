"""Maxwell's messages in JSON.

`{"database":"shop","table":"items","type":"update","ts":1700000000,"xid":7,"commit":true,"data":{"id":1,"name":"a"},
"old":{"name":"b"}}`

`data` is the row as it is, or was before a delete; `old` the columns that an update changed, with their values before.
Source: maxwells-daemon.io, "Maxwell's data format", and recorded messages.

**Tables** are `database.table`. **Types** are not sent: the table declares its columns (`schema:`). Numbers, truth values
and text are read as the declared type; an array or object is its JSON text; binary values are Base64. **The key** is the
one in the configuration, or `primary_key_columns` where Maxwell writes them (`output_primary_key_columns=true`).

| `type` | |
| --- | --- |
| insert, update, delete | changes; an update that has a column of the key in `old` moves its row |
| bootstrap-insert | a row that was read, not changed |
| bootstrap-start, bootstrap-complete | ignored |
| table-drop | ignored, and told as a dropped table; its `ts` has milliseconds |
| table-create, table-alter, database-... | ignored: schema changes |

**Order** is that of the stream, its offset: `xid` and `xoffset` order changes of one server only. So all messages of a table
must come through one partition (`producer_partition_by`: database or table), or those of a key where keys never change.
"""

from .decoder import MaxwellJsonDecoder

__all__ = ["MaxwellJsonDecoder"]
