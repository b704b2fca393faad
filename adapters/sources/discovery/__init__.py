"""Looks at sources for `replicator init` (`ports.source`): PostgreSQL, Kafka, folders."""
