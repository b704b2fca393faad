"""Gold tables in a sink of another package keep the promises of `ports.projector`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from paths import TESTS
from pyarrow import feather
from support.projected_lake import ProjectedLake

from adapters.gold import LocalProjector
from replicator.application.operations.refresh import ProjectionRefresher
from replicator.domain.errors import Fatal
from replicator.domain.projection import Projection, ProjectionInput
from replicator.ports.projector import InputTable, Projector
from replicator.ports.sink import SinkFeatures
from replicator.testing.projector_contract import make_projection


class TestTablesOfAPackage(ProjectedLake):
    __test__ = True
    sink = "box"
    keeps_versions = False

    @pytest.fixture(autouse=True)
    def _package(self, _folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(TESTS / "support" / "box_package"))
        import box

        self.box, self.file = box, self.folder.parent / "box" / "sums.arrow"

    def new_projector(self) -> Projector:
        sink = self.box.BoxTables({"path": str(self.file.parent)})
        return LocalProjector({"sinks": {**self.options["sinks"], "box": sink.features}})

    def replace_rows(self, table: str, rows: pa.Table) -> None:
        if table == "sums":
            self.box.write_table(self.file, rows, {})
        else:
            super().replace_rows(table, rows)

    def append_rows(self, table: str, rows: pa.Table) -> None:
        if table == "sums":
            said = {"remark": "computed by projection sums", "number": str(self.commits("sums") + 1)}
            self.box.write_table(self.file, pa.concat_tables([self.rows("sums"), rows]), said)
        else:
            super().append_rows(table, rows)

    def rows(self, table: str) -> pa.Table:
        return feather.read_table(self.file)

    def commits(self, table: str) -> int:
        return int(self.box.read_schema(self.file).metadata[b"number"])

    def run_before_commit(self, projector: Any, meanwhile: Callable[[], object]) -> None:
        features = projector._features["box"]

        def replace_rows(*given: Any) -> Any:
            meanwhile()
            return features.gold_tables.replace(*given)

        projector._features["box"] = replace(features, gold_tables=replace(features.gold_tables, replace=replace_rows))

    def test_inputs_of_two_sinks_in_one_database_are_read_in_one_snapshot(self) -> None:
        opened: list[list[str]] = []
        features = self.box.BoxTables({"path": str(self.file.parent)}).features

        def open_tables(files: Sequence[Path]) -> AbstractContextManager[Sequence[InputTable]]:
            opened.append([file.stem for file in files])
            return self.box.open_tables(files)

        for name in ("left", "right"):
            self.box.write_table(self.file.with_stem(name), pa.table({"city": ["Oslo"], "amount": [1]}), {})
        inputs = tuple(ProjectionInput(f"{name}s", f"of_{name}", name) for name in ("left", "right"))
        query = "SELECT city, r.amount + l.amount AS total FROM lefts l JOIN rights r USING (city)"
        projection = Projection("sums", query, inputs, "of_left", "sums")
        both = replace(features, projection_inputs=replace(features.projection_inputs, open=open_tables))
        projector = LocalProjector({"sinks": {"of_left": both, "of_right": both}})
        ProjectionRefresher(projector, "tests").refresh(projection)
        assert opened == [["left", "right"]]
        assert self.rows("sums").to_pylist() == [{"city": "Oslo", "total": 2}]

    def test_sink_without_projections_is_reported(self) -> None:
        plain = SinkFeatures(policies=frozenset())
        self.replace_rows("orders", pa.table({"city": ["Oslo"], "amount": [1]}))
        projector = LocalProjector({"sinks": {**self.options["sinks"], "box": plain}})
        with pytest.raises(Fatal, match="sink 'box' of projection sums cannot hold gold tables"):
            ProjectionRefresher(projector, "tests").refresh(replace(make_projection(), sink="box"))
        projector = LocalProjector({"sinks": {"lake": plain}})
        with pytest.raises(Fatal, match=r"projection sums reads lake\.orders, but projections cannot read that sink"):
            ProjectionRefresher(projector, "tests").refresh(make_projection())


def teardown_module() -> None:
    for name in ("box", "box_options"):
        sys.modules.pop(name, None)
