"""Each projector follows the contract."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures
from support.projected_lake import ProjectedLake

from adapters.delta.folders import LocalFolder
from adapters.delta.table_writer import end_versions
from adapters.delta.tables import open_table
from adapters.gold import LocalProjector, table_version
from adapters.gold.table_version import FEW_ROWS
from replicator.application.operations.refresh import ProjectionRefresher
from replicator.domain.errors import Fatal, Retryable
from replicator.domain.projection import RefreshRecord, RefreshWork
from replicator.ports.projector import Projector
from replicator.testing.projector_contract import FIRST_ROWS, SCHEMA, make_projection


class TestLocalProjector(ProjectedLake):
    __test__ = True

    def new_projector(self) -> Projector:
        return LocalProjector(self.options)

    @pytest.mark.parametrize("feed", [None, {"delta.enableChangeDataFeed": "true"}])
    def test_vacuumed_input_causes_a_full_refresh(self, feed: dict[str, str] | None) -> None:
        """The changes are unknown then, so everything is computed."""
        self.settings = feed
        rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in FIRST_ROWS], SCHEMA)
        self.replace_rows("orders", rows)
        self._refresh(make_projection())
        self.replace_rows("orders", rows.slice(1))
        table = DeltaTable(self.folder / "orders")
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)
        done = self._refresh(make_projection())
        assert (done.kind, done.reason) == ("full", "orders has changed, and the affected groups are unknown")

    def test_input_vacuumed_while_read_causes_a_full_refresh(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The files are deleted after the refresh has listed them."""
        rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in FIRST_ROWS], SCHEMA)
        self.replace_rows("orders", rows)
        self._refresh(make_projection())
        self.replace_rows("orders", rows.slice(1))
        DeltaTable(self.folder / "orders").vacuum(0, dry_run=False, enforce_retention_duration=False)
        monkeypatch.setattr(table_version, "_is_incomplete", lambda _: False)
        done = self._refresh(make_projection())
        assert (done.kind, done.reason) == ("full", "orders has changed, and the affected groups are unknown")
        assert self._read_sums() == {("Oslo", 1, 20), ("Rome", 1, 5), (None, 1, 1), ("it's", 1, 7)}

    def test_damaged_result_needs_a_full_refresh(self) -> None:
        """The rows of the damaged files cannot be copied; they can be computed."""
        rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in FIRST_ROWS], SCHEMA)
        self.replace_rows("orders", rows)
        self._refresh(make_projection())
        for path in (self.folder / "sums").glob("*.parquet"):
            path.write_bytes(path.read_bytes()[:-9])
        self.append_rows("orders", rows.slice(2, 1))
        with pytest.raises(Fatal, match=r"table lake\.sums cannot be rewritten"):
            self._refresh(make_projection())
        assert ProjectionRefresher(self.new_projector(), "tests").refresh(make_projection(), full=True).kind == "full"
        assert ("Rome", 2, 10) in self._read_sums()

    def test_input_with_a_short_log_causes_a_full_refresh(self) -> None:
        """The table's log retention has the same effect."""
        rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in FIRST_ROWS], SCHEMA)
        self.replace_rows("orders", rows)
        self._refresh(make_projection())
        self.append_rows("orders", rows.slice(2, 1))
        folder = LocalFolder(self.folder / "orders")
        assert end_versions(folder, open_table(folder)) == ""
        done = self._refresh(make_projection())
        assert (done.kind, done.reason) == ("full", "orders has changed, and the affected groups are unknown")
        assert ("Rome", 2, 10) in self._read_sums()

    def test_killed_refresh_is_done_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before its commit nothing has happened, after it everything."""
        rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in FIRST_ROWS], SCHEMA)
        self.replace_rows("orders", rows)
        self._refresh(make_projection())
        for step, then in (("_prepare_target", "groups"), ("_finish_commit", "current")):
            self.append_rows("orders", rows.slice(2, 1))
            before = self.commits("sums")
            dying = LocalProjector(self.options)
            monkeypatch.setattr(dying, step, _die)
            with pytest.raises(Killed):
                ProjectionRefresher(dying, "tests").refresh(make_projection())
            assert self._refresh(make_projection()).kind == then
            assert self.commits("sums") == before + 1
        assert ("Rome", 3, 15) in self._read_sums()

    def test_inputs_of_the_last_refresh_are_not_opened_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in FIRST_ROWS], SCHEMA)
        self.replace_rows("orders", rows)
        refreshing = ProjectionRefresher(self.new_projector(), "tests")
        refreshing.refresh(make_projection())
        for count in (2, 3, 4):
            self.append_rows("orders", rows.slice(2, 1))
            with monkeypatch.context() as patched:
                if count > 2:  # The first refresh has created the table, and the second one has opened it.
                    patched.setattr(DeltaTable, "__init__", _die)
                assert refreshing.refresh(make_projection()).kind == "groups"
            assert ("Rome", count, 5 * count) in self._read_sums()

    def test_recreated_input_causes_a_full_refresh(self) -> None:
        """The new table has the same path, and the same version numbers."""
        rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in FIRST_ROWS], SCHEMA)
        self.replace_rows("orders", rows)
        refreshing = ProjectionRefresher(self.new_projector(), "tests")
        refreshing.refresh(make_projection())
        shutil.rmtree(self.folder / "orders")
        self.replace_rows("orders", rows.slice(1))
        assert self._refresh(make_projection()).kind == "full"
        self.append_rows("orders", rows.slice(2, 1))
        done = refreshing.refresh(make_projection())
        assert (done.kind, done.groups) == ("groups", 1)

    def test_input_restored_from_a_copy_is_detected(self) -> None:
        """It has the same id, and later other versions with the same numbers."""
        rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in FIRST_ROWS], SCHEMA)
        self.replace_rows("orders", rows.slice(0, 2))
        shutil.copytree(self.folder / "orders", self.folder / "copy")
        self.append_rows("orders", rows.slice(2, 1))
        refreshing = ProjectionRefresher(self.new_projector(), "tests")
        refreshing.refresh(make_projection())
        assert self._read_sums() == {("Oslo", 2, 30), ("Rome", 1, 5)}
        shutil.rmtree(self.folder / "orders")
        shutil.copytree(self.folder / "copy", self.folder / "orders")
        self.append_rows("orders", rows.slice(3, 1))
        self.append_rows("orders", rows.slice(4, 1))
        refreshing.refresh(make_projection())
        assert self._read_sums() == {("Oslo", 2, 30), (None, 1, 1), ("it's", 1, 7)}

    def _refreshed_by_groups(self) -> tuple[pa.Table, ProjectionRefresher, Path]:
        """The rows of the input, the refresher after two refreshes, and the log of the result."""
        rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in FIRST_ROWS], SCHEMA)
        self.replace_rows("orders", rows)
        refreshing = ProjectionRefresher(self.new_projector(), "tests")
        refreshing.refresh(make_projection())
        self.append_rows("orders", rows.slice(2, 1))
        refreshing.refresh(make_projection())
        return rows, refreshing, self.folder / "sums" / "_delta_log"

    @pytest.mark.parametrize("others", [0, 1, 2])
    def test_result_restored_from_a_copy_is_detected(self, others: int) -> None:
        """Older commits are the same files; another refresher may have committed since."""
        rows, refreshing, log = self._refreshed_by_groups()
        before = {path.name for path in log.iterdir()}
        self.append_rows("orders", rows.slice(2, 1))
        refreshing.refresh(make_projection())
        for path in log.iterdir():
            if path.name not in before:
                path.unlink()
        for _ in range(others):
            self.append_rows("orders", rows.slice(4, 1))
            self._refresh(make_projection())
        self.append_rows("orders", rows.slice(2, 1))
        refreshing.refresh(make_projection())
        assert self._read_sums() == {("Oslo", 2, 30), ("Rome", 4, 20), (None, 1, 1), ("it's", 1 + others, 7 * (1 + others))}

    def test_replaced_last_commit_causes_a_full_refresh(self) -> None:
        """Some writers overwrite restored commits."""
        _, refreshing, log = self._refreshed_by_groups()
        max(log.glob("*.json")).unlink()
        self.append_rows("sums", self.rows("sums").slice(0, 1))
        done = refreshing.refresh(make_projection())
        assert (done.kind, self._read_sums()) == ("full", {("Oslo", 2, 30), ("Rome", 2, 10), (None, 1, 1), ("it's", 1, 7)})

    def test_input_changed_after_it_was_read_is_retryable(self) -> None:
        """The same projector has read the inputs again in the meantime."""
        rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in FIRST_ROWS], SCHEMA)
        self.replace_rows("orders", rows)
        self._refresh(make_projection())
        projector = self.new_projector()
        self.append_rows("orders", rows.slice(2, 1))
        with projector.open_refresh(make_projection()) as start:
            assert start.last is not None
            self.append_rows("orders", rows.slice(2, 1))
            self._refresh(make_projection())
            projector._read_inputs(make_projection())
            record = RefreshRecord("run", make_projection().fingerprint, start.reads, "groups", "")
            with pytest.raises(Retryable):
                projector.replace(make_projection(), RefreshWork(frozenset({"Rome"})), record)
        assert ("Rome", 3, 15) in self._read_sums()

    @pytest.mark.parametrize(("kind", "most"), [("HUGEINT", 2**62), ("UHUGEINT", 2**127)])
    def test_sum_above_64_bits_is_refused(self, kind: str, most: int) -> None:
        """Whole numbers have 64 bits on other engines."""
        self.replace_rows(
            "orders", pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in FIRST_ROWS], SCHEMA)
        )
        query = (
            f"SELECT city, SUM(CAST(amount AS {kind})) AS orders, CAST({{}} AS {kind}) AS total FROM orders GROUP BY city"
        )
        self._refresh(make_projection(query=query.format(5)))
        assert self._read_sums() == {("Oslo", 30, 5), ("Rome", 5, 5), (None, 1, 5), ("it's", 7, 5)}
        with pytest.raises(Fatal, match=r"total|128"):
            self._refresh(make_projection(query=query.format(most * 2 - 1 + (most == 2**62)), fingerprint="another"))

    @pytest.mark.parametrize("few", [0, FEW_ROWS])
    def test_missing_file_of_an_input_is_an_error(self, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """A missing or damaged new file is an error, until it is restored."""
        monkeypatch.setattr(table_version, "FEW_ROWS", few)
        rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in FIRST_ROWS], SCHEMA)
        self.replace_rows("orders", rows)
        refreshing = ProjectionRefresher(self.new_projector(), "tests")
        refreshing.refresh(make_projection())
        before = {*(self.folder / "orders").glob("*.parquet")}
        self.append_rows("orders", rows.slice(2, 1))
        (added,) = {*(self.folder / "orders").glob("*.parquet")} - before
        content = added.read_bytes()
        added.unlink()
        with pytest.raises(Fatal, match=r"orders|sums"):
            refreshing.refresh(make_projection())
        added.write_bytes(content[:-9])
        with pytest.raises(Fatal, match=r"orders|sums"):
            refreshing.refresh(make_projection())
        added.write_bytes(content)
        assert refreshing.refresh(make_projection()).kind == "groups"
        assert ("Rome", 2, 10) in self._read_sums()

    def test_input_with_deletion_vectors_is_refused(self) -> None:
        """Arrow's datasets ignore deletion vectors."""
        self.replace_rows(
            "orders", pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in FIRST_ROWS], SCHEMA)
        )
        refreshing = ProjectionRefresher(self.new_projector(), "tests")
        refreshing.refresh(make_projection())
        table = DeltaTable(self.folder / "orders")
        table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
        with pytest.raises(Fatal, match=r"lake\.orders uses a Delta feature"):
            refreshing.refresh(make_projection())


class Killed(BaseException):
    """A kill: no code catches it."""


def _die(*_: object, **__: object) -> None:
    raise Killed


class TestLocalProjectorByFeed(TestLocalProjector):
    """Changes are read from the change data feed of the input."""

    settings = {"delta.enableChangeDataFeed": "true"}  # noqa: RUF012 - as in the base
