"""The ports: typed protocols between the core and its adapters. The docstring of a port is its contract. Every MUST
names the contract test (in `replicator.testing`) that checks it."""
