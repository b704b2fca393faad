"""Avro schemas and values as Kafka Connect's Avro converter writes them."""
