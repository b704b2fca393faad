"""Projectors, which compute gold tables, by engine."""

from .local import LocalProjector

__all__ = ["LocalProjector"]
