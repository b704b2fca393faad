"""Kafka topics as sources."""

from .source import KafkaSource

__all__ = ["KafkaSource"]
