"""Rejected records in a Kafka topic."""

from .dead_letters import KafkaDeadLetters

__all__ = ["KafkaDeadLetters"]
