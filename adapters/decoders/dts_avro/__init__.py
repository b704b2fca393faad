"""Records of Alibaba DTS in Avro, as written by its change tracking and its synchronisation to Kafka.

The value of a message is one bare record `com.alibaba.dts.formats.avro.Record`: without schema, magic byte or header.
Some servers append a number `bornTimestamp`, which is skipped. Sources: the schema and the consumers of
aliyun/aliyun-dts-subscribe-sdk-java, LioRoger/subscribe_example and aliyun/aliyun-emapreduce-datasources.

**Tables** are `database.table` or `database.schema.table` from `objectName`. A shard of a logical table (tags
`l_db_name`, `l_tb_name`) belongs to that table. **Types** come from `dataTypeNumber` for MySQL and PolarDB-X (`rows.TYPES`);
otherwise a column is text. The configuration may declare columns, all or some (`schema:`). **The key** is the key in the
configuration, or else `PRIMARY` in the tag `pk_uk_info`. Tables without a key have the hidden column
`__#alibaba_rds_row_id#__`.

| `operation` | |
| --- | --- |
| INSERT, UPDATE, DELETE | changes; an update with another key in its old image is a key change |
| INIT | a row of the full load: a read |
| DDL | ignored as a schema change, also truncates and drops: no field names the table; the event log keeps the text |
| BEGIN, COMMIT, ROLLBACK, ABORT, HEARTBEAT, CHECKPOINT, CONTROL, FINISH, NOOP | ignored |
| FILL, COMMAND, RDB | rejected: their effect on rows is not documented |

| value | text |
| --- | --- |
| Integer, Decimal | as it is |
| Character | decoded with its character set (`rows.CODECS`); bytes if that is `binary` |
| Float | shortest decimal |
| Timestamp | in UTC; `millis` counts microseconds |
| DateTime | from its parts: a date, a time of day or span, both, or a year; `millis` counts microseconds |
| TimestampWithTimeZone | the same, with its offset |
| TextGeometry, TextObject; BinaryGeometry, BinaryObject | as it is; bytes |
| null, EmptyObject NULL | NULL |
| EmptyObject NONE | unchanged in an update |

`adapters.arrow.text_values` converts text to the column's type.

**Order** is (0 for INIT, 1 for the stream; then `id`), not the offset. `id` is unique in the whole stream and increases
along its only partition. After a failover of the store, records are sent again with other offsets but the same ids. By
offset they would be newer than the stored rows; by id they are duplicates. The first element orders the full load before
the stream, so a full load that runs in parallel, or again, never undoes a change. A new task restarts its ids: then
reload the tables, or raise the option `epoch`.
"""

from .decoder import DtsAvroDecoder

__all__ = ["DtsAvroDecoder"]
