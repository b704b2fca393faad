"""Files of Kafka Connect's object store sinks (S3, OSS and others with the same names), read as the original topics.

**Names.** `TOPIC+PARTITION+OFFSET.json`, optionally `.gz`, in any folders: `topics/orders/partition=0/` by default. The
offset belongs to the first record; each line is the next record. A file with more records than fit before the next one is
refused. A partitioner has sorted records of a partition into several files, so their offsets are unknown. If the connector
skipped records, later records have lower offsets here, in the same order.

**Values.** A line of `.json` is the value (`JsonFormat`). A line that is a JSON string stands for its text, because the
connector writes text messages so (`StringConverter`). A line of `.bin` (`ByteArrayFormat`) is the message as it was. A
record of Avro (`AvroFormat`) or a row of Parquet (`ParquetFormat`) becomes the JSON of the value with its schema. The
schema is in the file (`avro_files`, `parquet_values`). Text and bytes in Avro are messages as they were.

**Keys and headers** are in separate files, `TOPIC+PARTITION+OFFSET.keys.json` or `.keys.avro`, and the same with `.headers`,
in the order of the values (`store.kafka.keys`, `store.kafka.headers`). Once a partition has them, a file without them is
incomplete. Keys without values are tombstones (`behavior.on.null.values: write`). They are refused, because their
position among the values is unknown.

**Time.** The time of a record is the modification time of its file.
"""

from .source import ConnectFilesCheck, ConnectFilesSource

__all__ = ["ConnectFilesCheck", "ConnectFilesSource"]
