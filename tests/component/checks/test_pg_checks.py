"""Findings of doctor on a real PostgreSQL server."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from adapters.dispatch import event_log_check
from adapters.observability.checks.source_database import SourceDatabaseCheck
from adapters.sinks.postgres.check import PostgresCheck
from replicator.ports.frames import Lane
from replicator.ports.runtime import Diagnosis

pytestmark = pytest.mark.postgres

LANE = Lane("target.orders", "shop", "shop", "public.orders", "target", "orders", "scd1")


def run(dsn: str, *statements: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def list_problems(found: list[Diagnosis]) -> dict[str, str]:
    """Sentences of all warnings and errors, with their next steps. Each of them must have a next step."""
    assert all(d.sentence.endswith(".") or d.severity == "ok" for d in found), found
    assert all(d.next_step for d in found if d.severity != "ok"), found
    return {d.sentence: d.next_step for d in found if d.severity != "ok"}


def find_only(found: list[Diagnosis], severity: str = "error") -> Diagnosis:
    chosen = [d for d in found if d.severity == severity]
    assert len(chosen) == 1, found
    return chosen[0]


@pytest.fixture
def shop(postgres_dsn: str) -> str:
    """A source database with a table, a publication and a slot."""
    name = psycopg.conninfo.conninfo_to_dict(postgres_dsn)["dbname"]
    run(
        postgres_dsn,
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE PUBLICATION pub FOR ALL TABLES",
        f"SELECT pg_create_logical_replication_slot('slot_{name}', 'pgoutput')",
    )
    return postgres_dsn


def diagnose(dsn: str, **options: Any) -> list[Diagnosis]:
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    given = {"dsn": dsn, "publication": "pub", "slot": f"slot_{name}", "tables": ["public.*"], **options}
    return list(SourceDatabaseCheck("source shop", given).diagnose())


def test_slot_without_reader_is_a_warning(shop):
    found = diagnose(shop)
    assert "has no reader" in find_only(found, "warning").sentence
    assert not [d for d in found if d.severity == "error"]
    assert {"wal_level is logical.", "Publication pub covers the tables of the config (1)."} <= {d.sentence for d in found}


def test_missing_publication_is_reported(shop):
    problem = find_only(diagnose(shop, publication="nope"))
    assert (
        problem.sentence == "There is no publication nope."
        and "CREATE PUBLICATION nope FOR ALL TABLES;" in problem.next_step
    )
    run(shop, "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    step = find_only(diagnose(shop, publication="nope")).next_step
    assert "CREATE PUBLICATION nope FOR ALL TABLES WITH (publish_via_partition_root = true);" in step


def test_missing_or_unsuitable_slot_is_reported(shop, postgres_server):
    assert "There is no replication slot none" in find_only(diagnose(shop, slot="none"), "warning").sentence
    run(shop, "SELECT pg_create_logical_replication_slot('other', 'test_decoding')")
    assert "uses test_decoding" in find_only(diagnose(shop, slot="other")).sentence
    elsewhere = postgres_server.database()
    run(elsewhere, "CREATE PUBLICATION pub FOR ALL TABLES")
    assert "another database" in find_only(diagnose(elsewhere, slot="other", tables=[])).sentence


def test_tables_missing_from_the_publication_are_reported(shop):
    run(
        shop,
        "DROP PUBLICATION pub",
        "CREATE TABLE items (id int)",
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (9)",
        "CREATE PUBLICATION pub FOR TABLE items, parts WITH (publish = 'insert')",
    )
    found = list_problems(diagnose(shop, tables=["public.*", "public.gone"]))
    assert found["Publication pub does not cover public.orders, whose changes never arrive."].endswith(
        "ADD TABLE public.orders;"
    )
    assert "Publication pub leaves out some kinds of changes." in found
    assert "No table of the database is called public.gone." in found
    assert any("public.items has no primary key" in sentence for sentence in found)


def test_generated_columns_missing_from_the_log_are_reported(shop):
    """Only published tables of the config count. From PostgreSQL 18 on, a publication can send the columns."""
    statement = "CREATE TABLE {} (id int PRIMARY KEY, price int, total int GENERATED ALWAYS AS (price * 2) STORED)"
    run(shop, *(statement.format(table) for table in ("priced", "unwanted")))
    run(
        shop,
        statement.format("whole") + " PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (9)",
    )
    sentences = [
        text for text in list_problems(diagnose(shop, tables=["public.priced", "public.whole"])) if "generated" in text
    ]
    assert [text.partition(" has ")[0] for text in sentences] == ["Table public.priced", "Table public.whole"]
    assert all("total" in text for text in sentences)
    version = run(shop, "SELECT current_setting('server_version_num')::int")[0][0]
    if version >= 180_000:
        run(shop, "ALTER PUBLICATION pub SET (publish_generated_columns = stored)")
        assert not [d for d in diagnose(shop) if "generated" in d.sentence]


def test_role_without_replication_right_is_reported(shop, postgres_server):
    run(shop, "DROP ROLE IF EXISTS weak", "CREATE ROLE weak LOGIN")
    problem = find_only(diagnose(psycopg.conninfo.make_conninfo(shop, user="weak")))
    assert problem.sentence == "Role weak may not replicate." and "ALTER ROLE weak REPLICATION" in problem.next_step


@contextmanager
def limit_slot_wal(dsn: str, megabytes: int) -> Iterator[None]:
    run(dsn, f"ALTER SYSTEM SET max_slot_wal_keep_size = {megabytes}", "SELECT pg_reload_conf()")
    try:
        yield
    finally:
        run(dsn, "ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def test_slot_with_a_lost_log_is_reported(shop):
    name = psycopg.conninfo.conninfo_to_dict(shop)["dbname"]
    slot = f"slot_{name}"
    with limit_slot_wal(shop, 1):
        deadline = time.monotonic() + 60
        while run(shop, f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{slot}'") != [("lost",)]:
            assert time.monotonic() < deadline
            run(
                shop,
                "SELECT pg_logical_emit_message(false, 'x', repeat('x', 100000))",
                "SELECT pg_switch_wal()",
                "CHECKPOINT",
            )
        problem = find_only(diagnose(shop))
    assert "changes are gone" in problem.sentence and f"pg_drop_replication_slot('{slot}')" in problem.next_step


def test_slot_near_its_log_limit_is_a_warning(shop):
    with limit_slot_wal(shop, 20):
        run(shop, *["SELECT pg_logical_emit_message(false, 'x', repeat('x', 14000000))"])
        found = [d for d in diagnose(shop) if "holds back" in d.sentence]
    assert [d.severity for d in found] == ["warning"] and "of the 20 MB" in found[0].sentence


def target(dsn: str, **options: Any) -> list[Diagnosis]:
    return list(PostgresCheck("sink target", {"dsn": dsn, "schema": "mirror", **options}).diagnose())


def test_good_target_has_no_problems(postgres_dsn):
    found = target(postgres_dsn)
    assert not list_problems(found)
    assert any("mirror, which it makes at the first start" in d.sentence for d in found)


def test_missing_rights_of_a_role_are_reported_with_statements(postgres_dsn):
    run(
        postgres_dsn,
        "DROP ROLE IF EXISTS weak",
        "CREATE ROLE weak LOGIN",
        "CREATE SCHEMA mirror",
        "CREATE TABLE mirror.orders (id int)",
        "CREATE TABLE mirror.others (id int)",
        "GRANT USAGE ON SCHEMA mirror TO weak",
    )
    weak = psycopg.conninfo.make_conninfo(postgres_dsn, user="weak")
    found = list_problems(target(weak, targets=["orders"]))
    name = psycopg.conninfo.conninfo_to_dict(postgres_dsn)["dbname"]
    assert found["Role weak may not create tables in schema mirror."].endswith("ON SCHEMA mirror TO weak;")
    assert found["Role weak may not create schema _replicator."].endswith(f"GRANT CREATE ON DATABASE {name} TO weak;")
    assert "Role weak may not read and write the existing table mirror.orders." in found
    assert len(found) == 3
    for step in found.values():
        run(postgres_dsn, step.removeprefix("As its owner: "))
    assert not list_problems(target(weak, targets=["orders"]))
    run(postgres_dsn, f"REVOKE ALL ON DATABASE {name} FROM weak", "DROP OWNED BY weak")


def test_constraints_between_rows_of_targets_are_reported(postgres_dsn):
    """Deferrable constraints count too. Keys, constraints of single rows and constraints of other tables do not."""
    assert not list_problems(target(postgres_dsn, lanes=[LANE]))
    run(
        postgres_dsn,
        "CREATE SCHEMA mirror",
        "CREATE TABLE mirror.customers (id int PRIMARY KEY, email text UNIQUE)",
        "CREATE TABLE mirror.orders (id int PRIMARY KEY, amount int NOT NULL CHECK (amount > 0), customer int)",
    )
    assert not list_problems(target(postgres_dsn, lanes=[LANE]))
    run(
        postgres_dsn,
        "ALTER TABLE mirror.orders ADD CONSTRAINT amounts UNIQUE (amount)",
        "ALTER TABLE mirror.orders ADD EXCLUDE USING btree (customer WITH =)",
        "ALTER TABLE mirror.orders ADD CONSTRAINT of_customer FOREIGN KEY (customer) REFERENCES mirror.customers DEFERRABLE",
    )
    constraints = "amounts (unique), of_customer (foreign key to mirror.customers{}), orders_customer_excl (exclusion)"
    sentence = f"Table mirror.orders has constraints between rows, which can hold rows back: {constraints}."
    ((found, step),) = list_problems(target(postgres_dsn, lanes=[LANE])).items()
    assert found == sentence.format("") and "DEFERRABLE" in step and "actions" not in step
    run(
        postgres_dsn,
        "ALTER TABLE mirror.orders DROP CONSTRAINT of_customer",
        "ALTER TABLE mirror.orders ADD CONSTRAINT of_customer FOREIGN KEY (customer) REFERENCES mirror.customers"
        " ON DELETE CASCADE",
    )
    ((found, step),) = list_problems(target(postgres_dsn, lanes=[LANE])).items()
    assert found == sentence.format(", with an action") and "Take the actions off the foreign keys" in step


def test_read_only_server_is_reported(postgres_dsn):
    name = psycopg.conninfo.conninfo_to_dict(postgres_dsn)["dbname"]
    run(postgres_dsn, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    assert find_only(target(postgres_dsn)).sentence == "The server takes no writes."


@pytest.mark.parametrize(
    ("change", "says"),
    [({"dbname": "nowhere"}, 'database "nowhere" does not exist'), ({"user": "nobody_here"}, 'role "nobody_here" does not')],
)
def test_refused_connection_is_reported(postgres_dsn, change, says):
    dsn = psycopg.conninfo.make_conninfo(postgres_dsn, password="s3cret-word", **change)
    for found in (target(dsn), diagnose(dsn), list(event_log_check("sink raw", {"dsn": dsn}).diagnose())):
        problem = find_only(found)
        assert says in problem.sentence and problem.next_step
        assert "s3cret-word" not in str(found)


def test_unreachable_server_is_reported_within_seconds():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        began = time.monotonic()
        problem = find_only(target(f"postgresql://u:s3cret-word@127.0.0.1:{port}/d"))
    assert "not reachable" in problem.sentence and problem.next_step.startswith("Start the server")
    assert time.monotonic() - began < 10
    assert "s3cret-word" not in json.dumps([problem.sentence, problem.next_step])


def test_columns_that_lanes_need_and_the_log_lacks_are_reported(shop):
    run(shop, "CREATE TABLE notes (id int PRIMARY KEY, at timestamptz, body text)")
    needs = [
        {"match": "public.*", "lane": "lake into notes", "of": "deletes", "columns": ["at"], "key": "sequence_by"},
        {"match": "public.*", "lane": "lake into notes", "of": "updates", "columns": ["at", "body", "id"], "key": "where"},
    ]
    warned = [d for d in diagnose(shop, whole_rows=needs) if "Lane" in d.sentence]
    assert [(d.sentence, d.next_step) for d in warned] == [
        (
            "Lane lake into notes needs column at of public.notes for `sequence_by`: deletes do not send it, "
            "and are rejected.",
            "ALTER TABLE public.notes REPLICA IDENTITY FULL;",
        ),
        (
            "Lane lake into notes needs column body of public.notes for `where`: an update that leaves a large value as it "
            "is does not send it, and is rejected.",
            "ALTER TABLE public.notes REPLICA IDENTITY FULL;",
        ),
    ]
    assert not [d for d in diagnose(shop, whole_rows=needs, tables=["public.*", "public.notes"]) if "Lane" in d.sentence]
    run(shop, "ALTER TABLE notes REPLICA IDENTITY FULL")
    assert not [d for d in diagnose(shop, whole_rows=needs) if "Lane" in d.sentence]


@pytest.mark.parametrize(
    ("configured", "changed", "about"),
    [
        (None, "", ()),
        ("default", "", ()),
        ("full", "", ("Table public.orders has REPLICA IDENTITY DEFAULT", "public.orders: default")),
        ({"public.*": "full"}, "", ("Table public.orders has REPLICA IDENTITY DEFAULT", "public.orders: default")),
        (None, "REPLICA IDENTITY FULL", ()),
        ("default", "REPLICA IDENTITY FULL", ("Table public.orders has REPLICA IDENTITY FULL", "public.orders: full")),
        (None, "DEFERRABLE", ("Keys of public.orders are deferrable", "public.orders: full")),
        ({"public.orders": "full"}, "DEFERRABLE", ()),
    ],
)
def test_replica_identity_that_differs_from_config_is_reported(shop, configured, changed, about):
    if changed == "DEFERRABLE":
        run(
            shop,
            "ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id) DEFERRABLE",
            "ALTER TABLE orders REPLICA IDENTITY FULL",
        )
    elif changed:
        run(shop, f"ALTER TABLE orders {changed}")
    warned = [d for d in diagnose(shop, replica_identity=configured) if "replica_identity" in d.next_step]
    assert len(warned) == bool(about)
    assert all(about[0] in d.sentence and about[1] in d.next_step for d in warned)


def test_role_without_rights_on_other_schemas_sees_partitions(shop):
    """The planner may read names of pg_toast, which only a superuser may resolve."""
    name = f"reader_{psycopg.conninfo.conninfo_to_dict(shop)['dbname']}"
    run(
        shop,
        f"CREATE ROLE {name} LOGIN REPLICATION",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}",
        "CREATE TABLE texts (id int PRIMARY KEY, text text)",
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (9)",
        "ANALYZE",
    )
    found = diagnose(shop.replace("user=tester", f"user={name}"))
    assert not [d for d in found if d.severity == "error"]
