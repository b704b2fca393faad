"""The engine whose frames are Spark's: read, decoded, folded and applied on the executors."""

from .engine import SparkEngine

__all__ = ["SparkEngine"]
