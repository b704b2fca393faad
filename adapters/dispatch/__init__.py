"""Event logs, and checks of event logs and stores, in a lake or in a database, by their options."""
