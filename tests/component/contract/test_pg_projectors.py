"""Projections in PostgreSQL follow the contract, and further promises for their tables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from support.projected_database import ProjectedDatabase

from adapters.gold import LocalProjector
from adapters.sinks.postgres import gold
from adapters.sinks.postgres.gold import PostgresTables
from replicator.application.operations.refresh import ProjectionRefresher
from replicator.domain.errors import EnvironmentProblem, Fatal, Retryable
from replicator.domain.projection import Projection
from replicator.ports.projector import Projector
from replicator.testing.projector_contract import FIRST_ROWS, SCHEMA, make_projection

pytestmark = pytest.mark.postgres
OF_REFRESHES = "application_name LIKE 'replicator refreshes%'"
OTHER = "SELECT city, COUNT(*) AS orders, MAX(note) AS last, SUM(amount) / 2.0 AS half FROM orders GROUP BY city"


def _reads_all_columns(projection: Projection) -> Projection:
    """A query that may read every column."""
    return replace(projection, inputs=tuple(replace(one, columns=None) for one in projection.inputs))


class Killed(BaseException):
    """A kill: no code catches it."""


def _die(*_: object, **__: object) -> None:
    raise Killed


class TestPostgresProjector(ProjectedDatabase):
    __test__ = True

    def new_projector(self) -> Projector:
        return LocalProjector(self.make_options())

    def test_killed_refresh_is_done_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is killed at each step of its transaction, or loses the answer of its commit; for a first refresh and for
        one of groups."""
        rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in FIRST_ROWS], SCHEMA)
        self.replace_rows("orders", rows)
        for then in ("full", "groups"):
            for step in ("read_oid", "delete_groups", "insert_rows", "write_refresh"):
                with monkeypatch.context() as killing:
                    killing.setattr("adapters.sinks.postgres.gold." + step, _die)
                    with pytest.raises(Killed):
                        self._refresh(make_projection())
                assert not self._is_made() if then == "full" else ("Rome", 1, 5) in self._read_sums()
            self._refresh_without_answer(monkeypatch)
            assert self._refresh(make_projection()).kind == "current"
            self.append_rows("orders", rows.slice(2, 1))
        assert self._refresh(make_projection()).kind == "groups"
        assert ("Rome", 3, 15) in self._read_sums() and self.commits("sums") == 3

    def test_refresh_keeps_foreign_changes_of_the_table(self) -> None:
        """Grants, indexes, comments and columns stay, through a full refresh and through one of another query."""
        rows = self._first()
        self._refresh(make_projection())
        name = self._quote_table("sums")
        self._execute("DROP ROLE IF EXISTS gold_reader", "CREATE ROLE gold_reader", f"GRANT SELECT ON {name} TO gold_reader")
        self._execute(f"CREATE INDEX gold_city ON {name} (city)", f"ALTER TABLE {name} ADD COLUMN mine int")
        self.append_rows("orders", rows.slice(2, 1))
        assert self._refresh(make_projection()).kind == "groups"
        assert self._refresh(make_projection(key=None)).kind == "current"
        assert (
            self._refresh(_reads_all_columns(make_projection(query=OTHER, fingerprint="another"))).reason
            == "the projection was changed"
        )
        assert self.rows("sums").column_names == ["city", "orders", "mine", "last", "half"]
        assert ("Rome", 2, None, "c", 5.0) in self._read_sums()
        ((may, has),) = self._execute(
            "SELECT has_table_privilege('gold_reader', c.oid, 'SELECT'), relhasindex FROM pg_class c WHERE relname = 'sums'"
        )
        assert may and has
        self._execute("DROP OWNED BY gold_reader", "DROP ROLE gold_reader")

    @pytest.mark.parametrize("wrote", ["DELETE FROM {}", "UPDATE {} SET total = 0 WHERE city = 'Rome'", "TRUNCATE {}"])
    def test_foreign_writes_cause_a_full_refresh(self, wrote: str) -> None:
        """Writes during a refresh count too: they wait for it."""
        self._first()
        self._refresh(make_projection())
        found = self._read_sums()
        self._execute(wrote.format(self._quote_table("sums")))
        done = self._refresh(make_projection())
        assert (done.kind, done.reason) == ("full", "there is no earlier refresh to continue from")
        assert self._read_sums() == found
        assert self._refresh(make_projection()).kind == "current"

    def test_refresh_waits_for_another_writer_and_keeps_its_rows(self) -> None:
        """The other rows are not visible when the refresh reads the table, nor when it starts to write."""
        rows = self._first()
        self._refresh(make_projection())
        found = self._read_sums()
        self.append_rows("orders", rows.slice(2, 1))
        with ThreadPoolExecutor(1) as pool, psycopg.connect(self.dsn) as others:
            others.execute(f"INSERT INTO {self._quote_table('sums')} (city) VALUES ('Nowhere')".encode())
            refreshing = pool.submit(self._refresh, make_projection())
            while not self._execute(f"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND {OF_REFRESHES}"):
                assert not refreshing.done()
            others.commit()
            with pytest.raises(Retryable, match="another writer changed"):
                refreshing.result()
        assert self._refresh(make_projection()).kind == "full"
        assert self._read_sums() == {*found - {("Rome", 1, 5)}, ("Rome", 2, 10)}

    def test_other_writers_wait_for_a_refresh(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Their later writes are noticed."""
        rows = self._first()
        self._refresh(make_projection())
        self.append_rows("orders", rows.slice(2, 1))
        write_refresh = gold.write_refresh

        def meanwhile(*given: Any) -> None:
            with psycopg.connect(self.dsn, autocommit=True) as others:
                others.execute("SET lock_timeout = '100ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    others.execute(f"DELETE FROM {self._quote_table('sums')} WHERE city = 'Oslo'".encode())
                assert others.execute(f"SELECT count(*) FROM {self._quote_table('sums')}".encode()).fetchone() == (4,)
            write_refresh(*given)

        with monkeypatch.context() as patched:
            patched.setattr("adapters.sinks.postgres.gold.write_refresh", meanwhile)
            assert self._refresh(make_projection()).kind == "groups"
        assert self._refresh(make_projection()).kind == "current"

    def test_role_with_write_access_refreshes_an_existing_table(self) -> None:
        """The owner has created the table."""
        rows = self._first()
        self._refresh(make_projection())
        self._execute("DROP ROLE IF EXISTS gold_writer", "CREATE ROLE gold_writer LOGIN")
        self._execute(f"GRANT USAGE ON SCHEMA {self._quote_table()}, _replicator TO gold_writer")
        tables = f"ALL TABLES IN SCHEMA {self._quote_table()}, _replicator"
        self._execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO gold_writer")
        self.dsn_of_projectors = self.dsn.replace("user=tester", "user=gold_writer")
        self.append_rows("orders", rows.slice(2, 1))
        assert self._refresh(make_projection()).kind == "groups"
        with pytest.raises(EnvironmentProblem):
            self._refresh(_reads_all_columns(make_projection(query=OTHER, fingerprint="another")))
        assert ("Rome", 2, 10) in self._read_sums()
        self._execute("DROP OWNED BY gold_writer", "DROP ROLE gold_writer")

    def test_missing_guard_causes_a_full_refresh(self) -> None:
        """Writes without the guard are unknown."""
        self._first()
        self._refresh(make_projection())
        self._execute(f"DROP TRIGGER {gold.GUARD} ON {self._quote_table('sums')}")
        assert self._refresh(make_projection()).kind == "full"
        assert self._refresh(make_projection()).kind == "current"

    def test_dropped_table_is_created_again(self) -> None:
        self._first()
        self._refresh(make_projection())
        found = self._read_sums()
        self._execute(f"DROP TABLE {self._quote_table('sums')}")
        assert self._refresh(make_projection()).kind == "full"
        assert self._read_sums() == found

    def test_value_refused_by_the_server_is_not_revealed(self) -> None:
        """Nothing is written, and the message does not contain the value."""
        self.replace_rows("orders", pa.table([[1], ["s3cr3t\0"], [2], ["x"]], schema=SCHEMA))
        with pytest.raises(Fatal) as refused:
            self._refresh(make_projection())
        assert "s3cr3t" not in str(refused.value) and not self._is_made()

    def test_types_of_a_result_are_stored_exactly(self) -> None:
        query = (
            "SELECT true AS yes, CAST(amount / 4.0 AS DECIMAL(38, 9)) AS part, DATE '2024-02-29' AS day, "
            "[city, note] AS list, TIMESTAMP '2024-02-29 12:00:00.123456' AS at, 'x'::BLOB AS raw, "
            "'NaN'::DOUBLE AS nan, {'a': id} AS doc, CAST(NULL AS VARCHAR) AS nothing FROM orders WHERE id = 1"
        )
        self._first()
        self._refresh(_reads_all_columns(make_projection(query=query, key=None, partition_by=None)))
        (row,) = self.rows("sums").to_pylist()
        assert row["list"] == ["Oslo", "a"] and dict(row["doc"]) == {"a": 1} and str(row["nan"]) == "nan"
        assert (row["yes"], str(row["day"]), bytes(row["raw"]), row["nothing"]) == (True, "2024-02-29", b"x", None)
        assert (str(row["at"]), row["part"]) == ("2024-02-29 12:00:00.123456", Decimal("2.500000000"))

    def test_ending_versions_vacuums_the_table(self) -> None:
        self._first()
        projector = self.new_projector()
        ProjectionRefresher(projector, "tests").refresh(self._set_sink(make_projection()))
        assert projector.describe_versions(self._set_sink(make_projection()), end=True) == ""
        assert self._execute("SELECT relpages > 0 FROM pg_class WHERE relname = 'sums'") == [(True,)]
        projector.close()

    def _first(self) -> pa.Table:
        rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in FIRST_ROWS], SCHEMA)
        self.replace_rows("orders", rows)
        return rows

    def _refresh_without_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A refresh whose answer is lost."""
        replaced = PostgresTables.replace

        def lose_answer(self: PostgresTables, *given: Any) -> Any:
            replaced(self, *given)
            raise Retryable("the answer was lost")

        with monkeypatch.context() as losing:
            losing.setattr(PostgresTables, "replace", lose_answer)
            with pytest.raises(Retryable):
                self._refresh(make_projection())
