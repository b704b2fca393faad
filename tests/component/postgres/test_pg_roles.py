"""Roles with the rights of docs/how-to/secure-a-deployment.md: the owner creates and changes tables, the writer writes
rows."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from paths import PROJECT
from support.pg_case import LaneWrites, apply_write, fetch_rows, make_pg_lane, make_table, open_sink

from replicator.domain.errors import EnvironmentProblem
from replicator.domain.transform.rows import RowTransforms

pytestmark = pytest.mark.postgres

PAGE = PROJECT / "docs" / "how-to" / "secure-a-deployment.md"
OF_A_SUPERUSER, OF_THE_OWNER = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
CASES = [
    ("scd1", RowTransforms()),
    ("scd1", RowTransforms(soft_deletes=True)),
    ("scd2", RowTransforms()),
    ("append", RowTransforms()),
]
COLUMNS = {"id": pa.int64(), "v": pa.string()}
TABLE, WIDER = make_table(COLUMNS), make_table({**COLUMNS, "w": pa.int64()})


class Roles:
    """The roles of the page, in a separate database."""

    def __init__(self, dsn: str) -> None:
        self.dsn, self.name = dsn, psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        self.run(OF_A_SUPERUSER, "tester")

    def prefix_role(self, text: str) -> str:
        """Replaces role names. Roles belong to the whole server, so each database needs its own."""
        return (
            text.replace("DATABASE shop", f"DATABASE {self.name}")
            .replace("replicator_o", f"{self.name}_o")
            .replace("replicator_w", f"{self.name}_w")
        )

    def run(self, statements: str, user: str) -> None:
        fetch_rows(self.as_user(user), self.prefix_role(statements))

    def as_user(self, user: str) -> str:
        return self.dsn.replace("user=tester", f"user={self.prefix_role(user)}")


@pytest.fixture
def roles(postgres_dsn: str) -> Roles:
    return Roles(postgres_dsn)


def make_target(roles: Roles, feed: LaneWrites) -> str:
    """Creates the target as its owner and returns the DSN of the writer."""
    with open_sink(roles.as_user("replicator_owner")) as sink:
        apply_write(sink, feed.write({"id": 1, "v": "a"}))
    roles.run(OF_THE_OWNER, "replicator_owner")
    return roles.as_user("replicator_writer")


@pytest.mark.parametrize(("policy", "shape"), CASES, ids=["scd1", "soft", "scd2", "append"])
def test_documented_rights_are_enough_for_the_writer(roles: Roles, policy: str, shape: RowTransforms) -> None:
    feed = LaneWrites(TABLE, make_pg_lane(policy=policy), shape=shape)
    writer = make_target(roles, feed)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"id": 2, "v": "b"}, "c"),
        ({"id": 1, "v": "c"}, "u"),
        ({"id": 2}, "d"),
        ({}, "t"),
        ({"id": 3, "v": "d"}, "c"),
    ]
    with open_sink(writer) as sink:
        for row, op in changes:
            assert apply_write(sink, feed.write(row, op=op)).counts.applied >= 1
    assert (3, "d") in {row[:2] for row in fetch_rows(writer, "SELECT id, v FROM mirror.items")}
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        fetch_rows(writer, "DROP TABLE mirror.items")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        fetch_rows(writer, "CREATE TABLE _replicator.other ()")


def test_rights_to_read_and_insert_are_enough_for_append(roles: Roles) -> None:
    feed = LaneWrites(TABLE, make_pg_lane(policy="append"))
    writer = make_target(roles, feed)
    roles.run("REVOKE UPDATE, DELETE, TRUNCATE ON mirror.items FROM replicator_writer", "replicator_owner")
    with open_sink(writer) as sink:
        assert apply_write(sink, feed.write({"id": 2, "v": "b"})).counts.applied == 1


@pytest.mark.parametrize("policy", ["scd1", "scd2"])
def test_new_column_is_refused_until_the_owner_adds_it(roles: Roles, policy: str) -> None:
    feed = LaneWrites(TABLE, make_pg_lane(policy=policy))
    writer = make_target(roles, feed)
    feed.table = WIDER
    write = feed.write({"id": 2, "v": "b", "w": 3})
    with open_sink(writer) as sink, pytest.raises(EnvironmentProblem, match="must be owner of table items") as refused:
        apply_write(sink, write)
    assert "owner" in refused.value.next_step
    with open_sink(roles.as_user("replicator_owner")) as sink:
        sink.prepare(write.lane, write.plan)
    with open_sink(writer) as sink:
        assert apply_write(sink, write).counts.applied == 1
    assert fetch_rows(writer, "SELECT w FROM mirror.items WHERE id = 2") == [(3,)]


def test_new_table_is_refused_until_the_owner_creates_it(roles: Roles) -> None:
    writer = make_target(roles, LaneWrites(TABLE))
    other = LaneWrites(TABLE, make_pg_lane("others"))
    write = other.write({"id": 1, "v": "a"})
    with open_sink(writer) as sink, pytest.raises(EnvironmentProblem, match="permission denied for schema mirror"):
        apply_write(sink, write)
    with open_sink(roles.as_user("replicator_owner")) as sink:
        sink.prepare(write.lane, write.plan)
    with open_sink(writer) as sink:
        assert apply_write(sink, write).counts.applied == 1
