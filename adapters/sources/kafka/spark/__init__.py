"""Kafka topics, read by Spark's executors."""

from .source import KafkaSparkSource

__all__ = ["KafkaSparkSource"]
