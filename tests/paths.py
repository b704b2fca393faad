"""Where things are that tests read."""

from pathlib import Path

PROJECT = Path(__file__).parents[1]
TESTS = PROJECT / "tests"
GOLDEN = TESTS / "golden"
"""Recorded inputs, and outputs that were read once by a person."""
