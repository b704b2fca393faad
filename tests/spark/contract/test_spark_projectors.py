"""The projector on Spark fulfils the contract, as the local one does."""

from __future__ import annotations

from itertools import count

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.projected_database import ProjectedDatabase
from support.projected_lake import ProjectedLake
from support.spark_case import OPTIONS, get_spark_engine

from adapters.delta.commits import Attempt
from adapters.gold import LocalProjector, spark
from adapters.gold.spark import SparkProjector
from adapters.spark.merge import confirm_commit
from replicator.application.operations.refresh import ProjectionRefresher
from replicator.ports.projector import Projector
from replicator.testing.projector_contract import FIRST_ROWS, SCHEMA, make_projection


@pytest.mark.long
class TestSparkProjector(ProjectedLake):
    __test__ = True

    def new_projector(self) -> Projector:
        return SparkProjector({**self.options, **OPTIONS})

    def test_rows_deleted_by_deletion_vectors_need_a_full_refresh(self) -> None:
        """The rows of such a file are unknown without a read."""
        self.replace_rows(
            "orders", pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in FIRST_ROWS], SCHEMA)
        )
        self._refresh(make_projection())
        there = f"delta.`{self.folder / 'orders'}`"
        get_spark_engine().spark.sql(f"ALTER TABLE {there} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
        self._refresh(make_projection())
        paths = DeltaTable(self.folder / "orders").file_uris()
        get_spark_engine().spark.sql(f"DELETE FROM {there} WHERE id = 1")
        assert DeltaTable(self.folder / "orders").file_uris() == paths, "the same file, of which a row is deleted"
        assert self._refresh(make_projection()).kind == "full"
        assert self._read_sums() == {("Oslo", 1, 20), ("Rome", 1, 5), (None, 1, 1), ("it's", 1, 7)}

    def test_commit_of_another_writer_is_not_the_refresh(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Rows that it removes are restored."""
        self.replace_rows(
            "orders", pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in FIRST_ROWS], SCHEMA)
        )
        refreshing = ProjectionRefresher(self.new_projector(), "tests")
        refreshing.refresh(make_projection())

        def late(table: DeltaTable, attempt: Attempt) -> int:
            DeltaTable(self.folder / "sums").delete("city = 'Oslo'")
            return confirm_commit(table, attempt)

        rows = pa.Table.from_pylist([{"id": 9, "city": "Rome", "amount": 1, "note": "x"}], SCHEMA)
        self.append_rows("orders", rows)
        with monkeypatch.context() as patched:
            patched.setattr(spark, "confirm_commit", late)
            done = refreshing.refresh(make_projection())
        assert done.version == self.commits("sums") - 2
        self.append_rows("orders", rows)
        assert refreshing.refresh(make_projection()).kind == "full"
        assert self._read_sums() == {("Oslo", 2, 30), ("Rome", 3, 7), (None, 1, 1), ("it's", 1, 7)}


@pytest.mark.long
class TestEnginesThatFollowEachOther(ProjectedLake):
    __test__ = True

    @pytest.fixture(autouse=True)
    def _turns(self) -> None:
        self.turn = count()

    def new_projector(self) -> Projector:
        on_spark = next(self.turn) % 2 == 0
        return SparkProjector({**self.options, **OPTIONS}) if on_spark else LocalProjector(self.options)


@pytest.mark.long
@pytest.mark.postgres
class TestTablesInPostgresOnSpark(ProjectedDatabase):
    __test__ = True

    def new_projector(self) -> Projector:
        return SparkProjector({**self.make_options(), **OPTIONS})
