"""The promises of a projector (`ports.projector`), as tests for adapters to inherit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from replicator.application.operations.refresh import ProjectionRefresher, RefreshResult
from replicator.domain.errors import Fatal, Retryable
from replicator.domain.projection import GroupKey, Projection, ProjectionInput
from replicator.ports.projector import Projector

from .contract import Contract

Rows = list[tuple[Any, ...]]
SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("amount", pa.int64()), ("note", pa.string())])
FIRST_ROWS: Rows = [(1, "Oslo", 10, "a"), (2, "Oslo", 20, "b"), (3, "Rome", 5, "c"), (4, None, 1, "d"), (5, "it's", 7, "e")]
SUM_QUERY = "SELECT city, COUNT(*) AS orders, SUM(amount) AS total FROM orders GROUP BY city"
CITY = GroupKey("city", "city")
READS = frozenset({"city", "amount"})


class ProjectorContract(Contract):
    """An adapter defines a projector, and how to write and read tables of its sinks. The inputs are in `lake`, the table
    of `make_projection` is in `sink`. A sink with `gold_tables` is tested with the projector `adapters.gold.LocalProjector`.
    """

    sink = "lake"
    """The sink of the computed tables."""
    keeps_versions = True
    """True if these tables have older versions."""

    def new_projector(self) -> Projector:
        """A projector. Within a test all of them share the same sinks."""
        raise NotImplementedError

    def replace_rows(self, table: str, rows: pa.Table) -> None:
        """Replace the rows of a table, or create it, as another writer in one commit."""
        raise NotImplementedError

    def append_rows(self, table: str, rows: pa.Table) -> None:
        """Append to a table, as another writer in one commit."""
        raise NotImplementedError

    def rows(self, table: str) -> pa.Table:
        """The rows of a table."""
        raise NotImplementedError

    def commits(self, table: str) -> int:
        """The number of commits of the table."""
        raise NotImplementedError

    def run_before_commit(self, projector: Projector, meanwhile: Any) -> None:
        """Call `meanwhile` before the projector's next commit."""
        raise NotImplementedError

    def test_groups_are_replaced_in_one_commit(self) -> None:
        """The groups of added, removed and changed rows, also the NULL group. Other groups stay."""
        self.replace_rows("orders", _make_table(FIRST_ROWS))
        assert self._refresh(make_projection()).kind == "full"
        before = self.commits("sums")
        self.replace_rows("orders", _make_table([(1, "Oslo", 11, "a"), *FIRST_ROWS[1:3], (6, None, 2, "f"), FIRST_ROWS[4]]))
        done = self._refresh(make_projection())
        assert (done.kind, done.groups, done.rows) == ("groups", 2, 2)
        assert self.commits("sums") == before + 1
        assert self._read_sums() == {("Oslo", 2, 31), ("Rome", 1, 5), (None, 1, 2), ("it's", 1, 7)}
        assert self._refresh(make_projection()).kind == "current"
        assert self.commits("sums") == before + 1

    def test_changed_row_refreshes_its_old_and_new_group(self) -> None:
        """A changed row affects the group of its old values and the group of its new values. A change of a column
        outside the query affects no group."""
        self.replace_rows("orders", _make_table(FIRST_ROWS))
        self._refresh(make_projection())
        self.replace_rows("orders", _make_table([(1, "Rome", 10, "a"), *FIRST_ROWS[1:]]))
        assert self._refresh(make_projection()).groups == 2
        self.replace_rows("orders", _make_table([(1, "Rome", 10, "another"), *FIRST_ROWS[1:]]))
        done = self._refresh(make_projection())
        assert (done.kind, done.groups) == ("none", 0)
        self.replace_rows("orders", _make_table(FIRST_ROWS[1:]))
        assert self._refresh(make_projection()).groups == 1
        assert self._read_sums() == {("Oslo", 1, 20), ("Rome", 1, 5), (None, 1, 1), ("it's", 1, 7)}
        self.replace_rows("orders", _make_table([]))
        assert self._refresh(make_projection()).rows == 0
        assert self._read_sums() == set()

    def test_projection_without_groups_is_refreshed_in_full(self) -> None:
        """Without a group column, each refresh computes all rows."""
        whole = make_projection(key=None, partition_by=None)
        self.replace_rows("orders", _make_table(FIRST_ROWS))
        self._refresh(whole)
        self.append_rows("orders", _make_table([(9, "Rome", 1, "x")]))
        done = self._refresh(whole)
        assert (done.kind, done.rows) == ("full", 4)
        assert ("Rome", 2, 6) in self._read_sums()

    def test_missing_input_is_named_in_the_error(self) -> None:
        """The error has the sink and the name of the input."""
        with pytest.raises(Fatal, match=r"lake\.orders"):
            self._refresh(make_projection())

    def test_table_changed_by_another_writer_is_refreshed_in_full(self) -> None:
        """All rows are computed from scratch, so rows of another writer do not stay."""
        self.replace_rows("orders", _make_table(FIRST_ROWS))
        self._refresh(make_projection())
        sums = self._read_sums()
        self.append_rows("sums", self.rows("sums").slice(0, 1))
        assert self._refresh(make_projection()).kind == "full"
        assert self._read_sums() == sums

    def test_table_not_created_by_a_refresh_is_refused(self) -> None:
        """A table with the name of the projection, but created by another writer, keeps its rows."""
        self.replace_rows("orders", _make_table(FIRST_ROWS))
        self.replace_rows("sums", _make_table(FIRST_ROWS))
        with pytest.raises(Fatal, match=r"did not (create|make) it"):
            self._refresh(make_projection())
        assert self.rows("sums").num_rows == len(FIRST_ROWS)

    def test_rows_with_duplicate_keys_are_refused(self) -> None:
        """A query whose rows have unique keys is accepted."""
        self.replace_rows("orders", _make_table(FIRST_ROWS))
        with pytest.raises(Fatal, match="several rows with the same city"):
            self._refresh(make_projection(query="SELECT city, amount AS total FROM orders", keys=("city",)))
        self._refresh(make_projection(keys=("city",)))

    def test_a_query_that_fails_writes_nothing(self) -> None:
        """The table stays at its version."""
        self.replace_rows("orders", _make_table(FIRST_ROWS))
        self._refresh(make_projection())
        before = self.commits("sums")
        with pytest.raises(Fatal):
            self._refresh(make_projection(query="SELECT city, no_such_column FROM orders", fingerprint="another"))
        assert self.commits("sums") == before

    def test_changed_query_changes_the_columns(self) -> None:
        """The table gets the columns of the query."""
        self.replace_rows("orders", _make_table(FIRST_ROWS))
        self._refresh(make_projection())
        done = self._refresh(
            make_projection(query="SELECT city, MAX(amount) AS most FROM orders GROUP BY city", fingerprint="another")
        )
        assert done.kind == "full"
        assert self.rows("sums").column_names == ["city", "most"]

    def test_concurrent_refresh_raises_retryable(self) -> None:
        """If two refreshes run at the same time, one commits. The other raises Retryable, and its retry has nothing to
        do."""
        self.replace_rows("orders", _make_table(FIRST_ROWS))
        self._refresh(make_projection())
        self.append_rows("orders", _make_table([(9, "Rome", 1, "x")]))
        slow = self.new_projector()
        self.run_before_commit(slow, lambda: self._refresh(make_projection()))
        with pytest.raises(Retryable):
            ProjectionRefresher(slow, "tests").refresh(self._set_sink(make_projection()))
        slow.close()
        assert ("Rome", 2, 6) in self._read_sums()
        assert self._refresh(make_projection()).kind == "current"

    def test_older_versions_are_removed(self) -> None:
        """The rows stay, and the next refresh continues. A table that does not exist has no versions."""
        projector, mine = self.new_projector(), self._set_sink(make_projection())
        assert [projector.describe_versions(mine, end=end) for end in (False, True)] == ["", ""]
        self.replace_rows("orders", _make_table(FIRST_ROWS))
        self._refresh(make_projection())
        self.append_rows("orders", _make_table([(9, "Rome", 1, "x")]))
        self._refresh(make_projection())
        sums = self._read_sums()
        assert ("older versions" in projector.describe_versions(mine)) == self.keeps_versions
        assert projector.describe_versions(mine, end=True) == ""
        projector.close()
        assert self._read_sums() == sums and ("Rome", 2, 6) in sums
        self.append_rows("orders", _make_table([(10, "Rome", 1, "x")]))
        self._refresh(make_projection())
        assert ("Rome", 3, 7) in self._read_sums()

    def _refresh(self, projection: Projection) -> RefreshResult:
        projector = self.new_projector()
        try:
            return ProjectionRefresher(projector, "tests").refresh(self._set_sink(projection))
        finally:
            projector.close()

    def _set_sink(self, projection: Projection) -> Projection:
        return replace(projection, sink=self.sink)

    def _read_sums(self) -> set[tuple[Any, ...]]:
        return {tuple(row.values()) for row in self.rows("sums").to_pylist()}


def make_projection(
    query: str = SUM_QUERY,
    key: GroupKey | None = CITY,
    partition_by: str | None = "city",
    keys: tuple[str, ...] = (),
    fingerprint: str = "one",
) -> Projection:
    """An example projection."""
    read = ProjectionInput("orders", "lake", "orders", key, READS)
    return Projection("sums", query, (read,), "lake", "sums", keys, partition_by, fingerprint, "config.yaml:7")


def _make_table(rows: Rows) -> pa.Table:
    columns: Mapping[str, list[Any]] = {name: [row[n] for row in rows] for n, name in enumerate(SCHEMA.names)}
    return pa.table(dict(columns), SCHEMA)
