"""The Spark engine: executors read, decode, fold and apply the frames."""

from .engine import SparkEngine

__all__ = ["SparkEngine"]
