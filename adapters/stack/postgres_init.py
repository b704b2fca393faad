"""Initialisation of a new PostgreSQL server: its database and init script."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psycopg
from psycopg import errors, sql

from .layout import SUPERUSER, StackDatabase
from .processes import await_condition

MARK = "initialised by {}"


def initialise(database: StackDatabase, port: int, script: Path) -> None:
    """Create the database and run its script once. The script commits together with a mark."""
    with psycopg.connect(database.dsn(port, SUPERUSER, superuser=True), autocommit=True) as admin:
        _create_database(admin, database.database)
    with psycopg.connect(database.dsn(port, superuser=True)) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('replicator.init'))")
        if not _is_marked(connection):
            connection.execute(script.read_text(encoding="utf-8").encode())
            _set_mark(connection, database.database, script.name)


def create_database(dsn: str, name: str, owner: str) -> None:
    """Create another database with this owner, unless it exists. `dsn`: the superuser's."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        _create_database(admin, name)
        admin.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(name), sql.Identifier(owner)))
    with psycopg.connect(psycopg.conninfo.make_conninfo(dsn, dbname=name), autocommit=True) as inside:
        inside.execute(sql.SQL("ALTER SCHEMA public OWNER TO {}").format(sql.Identifier(owner)))


def _create_database(admin: psycopg.Connection, name: str) -> None:
    if admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone() is None:
        # The server may still run this statement for a killed start. If ours is refused, the other one has succeeded.
        with suppress(errors.DuplicateDatabase, errors.UniqueViolation):
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def _is_marked(connection: psycopg.Connection) -> bool:
    found = connection.execute(
        "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = current_database()"
    ).fetchone()
    return found is not None and found[0] is not None


def _set_mark(connection: psycopg.Connection, database: str, script: str) -> None:
    text = MARK.format(script)
    connection.execute(sql.SQL("COMMENT ON DATABASE {} IS {}").format(sql.Identifier(database), sql.Literal(text)))


def create_publication(dsn: str, name: str = "cdc_publication") -> None:
    """Publish all tables of schema `public`, including future ones, unless the publication exists."""
    with psycopg.connect(dsn, autocommit=True) as admin:
        if admin.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (name,)).fetchone() is None:
            admin.execute(sql.SQL("CREATE PUBLICATION {} FOR TABLES IN SCHEMA public").format(sql.Identifier(name)))


def drop_slot(dsn: str, name: str, seconds: float = 30) -> None:
    """Drop a replication slot when its reader has disconnected. Does nothing if there is no slot."""
    find = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    with psycopg.connect(dsn, autocommit=True) as admin:
        await_condition(lambda: admin.execute(find, (name,)).fetchone() in (None, (False,)), seconds, alive=lambda: True)
        if admin.execute(find, (name,)).fetchone() is not None:
            admin.execute("SELECT pg_drop_replication_slot(%s)", (name,))
