"""The embedded servers: PostgreSQL, Kafka and Kafka Connect as local processes, behind `replicator.ports.runtime`."""

from .embedded import EmbeddedStack
from .layout import StackPorts

__all__ = ["EmbeddedStack", "StackPorts"]
