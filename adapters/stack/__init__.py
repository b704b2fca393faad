"""The embedded servers: PostgreSQL, Kafka and Kafka Connect as local processes, behind `replicator.ports.service`."""

from .embedded import EmbeddedStack
from .layout import StackPorts

__all__ = ["EmbeddedStack", "StackPorts"]
