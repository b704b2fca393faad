"""Recorded topics in files, read by Spark's executors."""
