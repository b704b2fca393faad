"""Rejected records in a Kafka topic."""

from .store import KafkaDeadLetters

__all__ = ["KafkaDeadLetters"]
