"""Shared code for immutable files: when they are complete, their order, and rows of text and Parquet."""
