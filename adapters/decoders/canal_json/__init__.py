"""Canal's flat messages in JSON (also those of DTS and of Flink's `canal-json`).

`{"data":[{"id":"1","name":"a"}],"old":null,"type":"INSERT","database":"shop","table":"items","mysqlType":{"id":"bigint",
"name":"varchar(10)"},"pkNames":["id"],"isDdl":false,"es":1700000000000,"ts":1700000000123,"id":7}`

A message has one or more rows. `data[i]` is the row, or the deleted row. `old[i]` has the columns that an update changed,
with their old values. All values are text. Sources: the class `FlatMessage` of alibaba/canal, and recorded messages.

**Tables** are `database.table`. **Types** come from `mysqlType` (`adapters.decoders.common.mysql_types`). Binary values
are ISO-8859-1 text with one character per byte. A column without a type, or with an unknown one, is text. The
configuration may declare columns (`schema:`), all or some, and must do so if messages have no types. **The key** is
`pkNames`, or the one in the configuration.

**Labels.** Canal's RowsLogBuffer sends enum and set values from the binlog as numbers, with `sqlType` 4 (INTEGER) and -7
(BIT); a full load sends text. TiCDC does the same, and lists the labels only with `content-compatible=true`.

| `type` | |
| --- | --- |
| INSERT, UPDATE, DELETE | changes; an update with another value of a key column in `old` is a key change |
| TRUNCATE | a truncate; it has no columns and no key, so the table must declare both |
| ERASE | ignored, and reported as a dropped table if the message names one; needs no declared columns |
| with `isDdl`, and QUERY | ignored |

**Order** is that of the stream: the offset, then the row in its message. `es` has only seconds, and `id` counts messages
of one server. So all messages of a table must be in one partition, or all messages of a key if keys never change.
"""

from .decoder import CanalJsonDecoder

__all__ = ["CanalJsonDecoder"]
