"""Schemas of Kafka Connect, as its Avro converter writes them."""
