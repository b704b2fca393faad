"""Event logs in PostgreSQL as streams: the topics that they recorded."""

from .source import PostgresLogSource

__all__ = ["PostgresLogSource"]
