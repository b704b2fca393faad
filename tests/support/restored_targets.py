"""Targets that start from a stored state, for contract suites."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from adapters.engines.local import LocalEngine
from support.delta_targets import DeltaTarget

from .partitioned_sink import choose_key_column


class RestoresFromLake:
    """Stores the state in a lake."""

    numbers = count(1)
    one_in = 3

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path):
        self.parent = tmp_path

    def new_lake(self):
        folder = self.parent / f"snapshot{next(self.numbers)}"
        return DeltaTarget(folder), folder

    def lake_engine(self):
        return LocalEngine()

    def new_engine(self):
        return LocalEngine()


def choose_first_column(plan):
    """The key column, or the text column that one test uses."""
    return ["v"] if [*plan.table.column_names] == ["id", "v"] else choose_key_column(plan)
