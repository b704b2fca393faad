"""The ports: what the core asks of the outside, as typed protocols. A port's docstring is its contract; every MUST in it
names the contract test (in `replicator.testing`) that checks it."""
