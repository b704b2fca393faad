"""Files of Kafka Connect's sinks to object stores, S3, OSS and those that name files like them, read as the topics.

**Names.** `TOPIC+PARTITION+OFFSET.json`, optionally `.gz`, in whatever folders: `topics/orders/partition=0/` by default. The
offset is that of the first record, and the others follow, one a line. A file that holds more than there is room for until
the next one is refused: a partitioner sorted records of a partition into several files at a time, and nothing says which
offsets they had. Where the connector passed over records, those behind them have lower offsets here, in the same order.

**Values.** A line of `.json` is the value (`JsonFormat`). One that is a JSON text stands for what the text says: so are
messages written that are text to the connector (`StringConverter`). A line of `.bin` (`ByteArrayFormat`) is the message as
it was. A record of Avro (`AvroFormat`) and a row of Parquet (`ParquetFormat`) become the JSON of the value with its schema,
which the file names (`..avro`, `parquet`); text and bytes in Avro are messages as they were.

**Keys and headers** lie beside, in `TOPIC+PARTITION+OFFSET.keys.json` or `.keys.avro`, and `.headers` alike, in the order of
the values (`store.kafka.keys`, `store.kafka.headers`). Once a partition has them, a file without them is not complete. Keys
without values, which are tombstones (`behavior.on.null.values: write`), are refused: nothing says where among the values
they belong.

**Time.** That of a record is its file's last write.
"""

from .source import ConnectFilesCheck, ConnectFilesSource

__all__ = ["ConnectFilesCheck", "ConnectFilesSource"]
