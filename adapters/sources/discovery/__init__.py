"""Looks at sources for `replicator init` (`ports.discovery`): PostgreSQL, Kafka, folders."""
