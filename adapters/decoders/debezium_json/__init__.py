"""Debezium's JSON change events, with and without schema.

With a schema (Kafka Connect's JsonConverter, `schemas.enable=true`) the bytes before the payload are the same from record
to record: they are compared, hashed once, and only payloads are parsed, into structs generated for that schema. Any other
layout of the same JSON is parsed whole. Without a schema the columns are those that the configuration declares; fields
that are not declared are left out. Types, rejects, order and transactions: `adapters.decoders.debezium`.
"""

from .decoder import DebeziumJsonDecoder

__all__ = ["DebeziumJsonDecoder"]
