"""Event logs as sources."""
