"""The adapters: every engine, driver and wire format, behind the ports of `replicator.ports`."""
