"""Event logs and event stores by the place that their options name: a lake or a database."""
