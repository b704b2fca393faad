"""Debezium's JSON change events, with and without a schema.

With a schema (Kafka Connect's JsonConverter, `schemas.enable=true`) the bytes before the payload are equal in most
records. They are compared and hashed once, and only payloads are parsed, into structs generated for that schema. Other
layouts of the same JSON are parsed as a whole. Without a schema the configuration declares the columns, and other fields
are left out. For types, rejects, order and transactions see `adapters.decoders.debezium`.
"""

from .decoder import DebeziumJsonDecoder

__all__ = ["DebeziumJsonDecoder"]
