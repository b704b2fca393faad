"""Event logs in PostgreSQL as sources: the topics that they recorded."""
