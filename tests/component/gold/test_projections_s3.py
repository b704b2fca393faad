"""Projections over tables in an object store."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from servers.object_store import ObjectStore

from adapters.delta.folders import Folder
from adapters.delta.options import LakeOptions
from adapters.gold import LocalProjector
from replicator.ports.projector import Projector
from replicator.testing.projector_contract import ProjectorContract


class StoredLake(ProjectorContract):
    __test__ = False

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    def new_projector(self) -> Projector:
        return LocalProjector({"sinks": {"lake": self.options}})

    def replace_rows(self, table: str, rows: pa.Table) -> None:
        folder = self._folder(table)
        write_deltalake(folder.uri, rows, mode="overwrite", storage_options=folder.options)

    def rows(self, table: str) -> pa.Table:
        return self._open_lake(table).to_pyarrow_table()

    def commits(self, table: str) -> int:
        return int(self._open_lake(table).version()) + 1

    def _open_lake(self, table: str) -> DeltaTable:
        folder = self._folder(table)
        return DeltaTable(folder.uri, storage_options=folder.options)

    def _folder(self, table: str) -> Folder:
        return LakeOptions.from_options(self.options).lake.table(table)


def test_groups_are_replaced_in_an_object_store(s3: ObjectStore) -> None:
    lake = StoredLake(s3.lake())
    lake.test_groups_are_replaced_in_one_commit()
    assert LocalProjector({"sinks": {"lake": lake.options}})._input_folder("lake", "sums").uri.startswith("s3://")
