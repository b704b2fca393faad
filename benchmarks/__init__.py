"""Throughput, freshness and memory on real servers: `python -m benchmarks`. Not part of the tests."""
