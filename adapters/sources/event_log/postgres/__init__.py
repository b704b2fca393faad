"""Event logs in PostgreSQL as sources: the topics that they recorded."""

from .source import PostgresLogSource

__all__ = ["PostgresLogSource"]
