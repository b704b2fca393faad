"""Shared by all Delta writers: the layout of a lake, positions, locks, types and commits."""
