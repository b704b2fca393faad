"""Delta Lake as a target: mirrors, event log, event store, dead letters."""
