"""Everything that computes projections keeps the contract."""

from __future__ import annotations

from projected_lake import ProjectedLake

from adapters.projections import LocalProjector
from replicator.ports.projector import Projector


class TestLocalProjector(ProjectedLake):
    __test__ = True

    def new_projector(self) -> Projector:
        return LocalProjector(self.options)
