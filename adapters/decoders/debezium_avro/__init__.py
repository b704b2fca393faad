"""Debezium's change events in Avro, framed as Confluent's AvroConverter frames them: a zero byte, four bytes with the id of
the schema in a registry, the body.

Each key and value becomes the text that Connect's JsonConverter would have written of the same data, with the schema that
the Avro schema was made from (`adapters.decoders.avro.connect_schema`). From there on everything is as of `debezium_json`:
`adapters.decoders.debezium` has the types, the rejects, the order. A key that is not framed is read as JSON,
as another converter may have written it. So are records of backfills, which are in topics of their own
(`ports.backfill.TOPICS`).

| Record | Outcome |
| --- | --- |
| the registry has no schema of its id | UNKNOWN_SCHEMA |
| not framed, or framed otherwise; a schema that Connect does not write | MALFORMED |
| a body that is cut short or goes on behind its end, text that is not UTF-8 | MALFORMED |
| more bytes or values than a record may have, a schema with too many types or too deep | TOO_LARGE |
| the registry does not answer | none: `Retryable` |
| the registry refuses the credentials, or is none | none: `EnvironmentProblem` |
"""

from .decoder import DebeziumAvroDecoder

__all__ = ["DebeziumAvroDecoder"]
