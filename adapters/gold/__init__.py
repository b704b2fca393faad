"""What computes projections, by engine."""

from .local import LocalProjector

__all__ = ["LocalProjector"]
