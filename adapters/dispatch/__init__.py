"""Event logs and event stores, in a lake or in a database, by their options."""
