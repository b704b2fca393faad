"""Checks of `replicator doctor`, one subject per module. Checks of sources are in the packages of the sources."""
