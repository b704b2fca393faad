"""Projections on Spark keep the contract, beside those that are computed in this process."""

from __future__ import annotations

from itertools import count

import pytest
from projected_database import ProjectedDatabase
from projected_lake import ProjectedLake
from spark_case import OPTIONS

from adapters.projections import LocalProjector
from adapters.projections.spark import SparkProjector
from replicator.ports.projector import Projector


@pytest.mark.long
class TestSparkProjector(ProjectedLake):
    __test__ = True

    def new_projector(self) -> Projector:
        return SparkProjector({**self.options, **OPTIONS})


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
        return SparkProjector({**self.options, **OPTIONS})
