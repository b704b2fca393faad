"""Debezium's change events in Avro with Confluent's framing: a zero byte, four bytes with the schema id in a registry,
the body.

Each key and value is converted to the JSON text of Connect's JsonConverter, with the schema that the Avro schema was made
from (`adapters.decoders.avro.connect_schema`). The rest is as in `debezium_json`: see `adapters.decoders.debezium` for
types, rejects and order. A key without a frame is read as JSON, because another converter may have written it. Records of
backfills are JSON too; they have their own topics (`ports.source.BACKFILL_TOPICS`).

| Record | Outcome |
| --- | --- |
| the registry has no schema with this id | UNKNOWN_SCHEMA |
| no frame or another one; a schema that Connect does not write | MALFORMED |
| a body that is cut short or continues after its end, text that is not UTF-8 | MALFORMED |
| more bytes or values than a record may have, a schema with too many types or too deep | TOO_LARGE |
| the registry does not answer | none: `Retryable` |
| the registry refuses the credentials, or is not a registry | none: `EnvironmentProblem` |
"""

from .decoder import DebeziumAvroDecoder

__all__ = ["DebeziumAvroDecoder"]
