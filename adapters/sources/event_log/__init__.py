"""Event logs read as streams."""
