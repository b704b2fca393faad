"""Canal's flat messages in JSON (also those of DTS and of Flink's `canal-json`).

`{"data":[{"id":"1","name":"a"}],"old":null,"type":"INSERT","database":"shop","table":"items","mysqlType":{"id":"bigint",
"name":"varchar(10)"},"pkNames":["id"],"isDdl":false,"es":1700000000000,"ts":1700000000123,"id":7}`

A message has one row or many: `data[i]` is what it is, or was before a delete, and `old[i]` the columns that an update
changed, with their values before. All values are text. Sources: the class `FlatMessage` of alibaba/canal, and recorded
messages.

**Tables** are `database.table`. **Types** are those of `mysqlType` (`adapters.decoders.common.mysql_types`); binary values
are text of ISO-8859-1 with a character for each byte. A column that it lacks, or of a type that is not known, is text. A
table may declare its columns instead, or some of them (`schema:`), and has to where messages say no types. **The key** is
`pkNames`, or the one in the configuration.

**Labels.** RowsLogBuffer of Canal gives the values of enum and set in the binlog as numbers, with `sqlType` 4 (INTEGER) and
-7 (BIT); a full load has them as text. TiCDC does the same, and lists the labels only with `content-compatible=true`.

| `type` | |
| --- | --- |
| INSERT, UPDATE, DELETE | changes; an update that has a column of the key in `old` with another value moves its row |
| TRUNCATE | a truncate. It says neither columns nor key: its table must declare both |
| ERASE | ignored, and told as a dropped table where the message names it; no column need be declared |
| with `isDdl`, and QUERY | ignored |

**Order** is that of the stream: the offset, then the row in its message. `es` has seconds only, and `id` counts messages of
one server. So all messages of a table must come through one partition, or those of a key where keys never change.
"""

from .decoder import CanalJsonDecoder

__all__ = ["CanalJsonDecoder"]
