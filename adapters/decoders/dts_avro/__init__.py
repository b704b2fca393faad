"""Records of Alibaba DTS in Avro, as its change tracking and its synchronisation to Kafka write them.

The value of a message is one record `com.alibaba.dts.formats.avro.Record`, bare: without schema, magic byte or header. Some
servers send a number `bornTimestamp` behind the last field; it is passed over. Sources: the schema and the consumers of
aliyun/aliyun-dts-subscribe-sdk-java, LioRoger/subscribe_example and aliyun/aliyun-emapreduce-datasources.

**Tables** are `database.table` or `database.schema.table` of `objectName`; a shard of a logical table (tags `l_db_name`,
`l_tb_name`) goes to that. **Types** follow from `dataTypeNumber` where the source is MySQL or PolarDB-X (`types`); else a
column is text. A table may declare its columns, or some of them (`schema:`). **The key** is that of the
configuration, or `PRIMARY` of the tag `pk_uk_info`, or the hidden column `__#alibaba_rds_row_id#__` of tables without one.

| `operation` | |
| --- | --- |
| INSERT, UPDATE, DELETE | changes; an update whose image before has another key moves its row |
| INIT | a row of the full load, read, not changed |
| DDL | ignored: a schema change, and no field names its table; the event log keeps its text. Truncates and drops are these |
| BEGIN, COMMIT, ROLLBACK, ABORT, HEARTBEAT, CHECKPOINT, CONTROL, FINISH, NOOP | ignored |
| FILL, COMMAND, RDB | rejects: nobody documents what they would do to a row |

| value | text |
| --- | --- |
| Integer, Decimal | as it is |
| Character | of its character set (`charsets`); bytes where that is `binary` |
| Float | shortest decimal |
| Timestamp | in UTC; `millis` counts microseconds |
| DateTime | the parts there are: a date, a time of day or span, both, a year; `millis` counts microseconds |
| TimestampWithTimeZone | the same, with its offset |
| TextGeometry, TextObject; BinaryGeometry, BinaryObject | as it is; bytes |
| null, EmptyObject NULL | NULL |
| EmptyObject NONE | not sent: an update leaves what the row holds |

Text becomes the column's type as `adapters.arrow.text_values` says.

**Order** is (0 for INIT and 1 for the stream, `id`), not the offset. `id` is unique in the whole stream and grows along its
one partition. When a store fails over, records come again under other offsets but with their ids: by offset they would be
newer than what is there, by id they are known. The first element puts the full load before the stream, so that a full load
that runs, or runs again, beside the stream never undoes a change. A task that is created anew counts its ids anew: the
tables have to be loaded anew then, or the option `epoch` has to be raised.
"""

from .decoder import DtsAvroDecoder

__all__ = ["DtsAvroDecoder"]
