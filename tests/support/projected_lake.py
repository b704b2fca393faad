"""A lake for the contract of projectors. The other writer is delta-rs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from replicator.testing.projector_contract import ProjectorContract


class ProjectedLake(ProjectorContract):
    """A folder of Delta tables."""

    __test__ = False

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "a lake"
        self.options: dict[str, Any] = {"sinks": {"lake": {"path": str(self.folder)}}}

    settings: Mapping[str, str] | None = None
    """Table properties that the other writer sets."""

    def replace_rows(self, table: str, rows: pa.Table) -> None:
        write_deltalake(self.folder / table, rows, mode="overwrite", configuration=self.settings)

    def append_rows(self, table: str, rows: pa.Table) -> None:
        write_deltalake(self.folder / table, rows, mode="append")

    def rows(self, table: str) -> pa.Table:
        return DeltaTable(self.folder / table).to_pyarrow_table()

    def commits(self, table: str) -> int:
        return int(DeltaTable(self.folder / table).version()) + 1

    def run_before_commit(self, projector: Any, meanwhile: Callable[[], object]) -> None:
        """Runs `meanwhile` after the table is prepared and its version is read."""
        prepare = projector._prepare_target

        def prepare_target(*args: Any) -> DeltaTable:
            table = prepare(*args)
            projector._prepare_target = prepare
            meanwhile()
            return table

        projector._prepare_target = prepare_target
