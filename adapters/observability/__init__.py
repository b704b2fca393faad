"""Metrics, lineage and checks."""
