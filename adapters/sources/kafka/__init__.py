"""Records from Kafka topics."""

from .source import KafkaSource

__all__ = ["KafkaSource"]
