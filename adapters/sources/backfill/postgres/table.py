"""Descriptions of PostgreSQL tables for backfills: columns, key, and the part that the publication sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from replicator.domain.errors import ConfigProblem, EnvironmentProblem

from ..database import BackfillTable, refuse_keyless, split_name
from .columns import PostgresColumn

OLDEST = 140_000
COLUMNS = """
WITH RECURSIVE made AS (
    SELECT a.attnum, a.attname, a.attnotnull, a.attgenerated, a.atttypid AS oid, a.atttypmod AS modifier
    FROM pg_attribute a
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT m.attnum, m.attname, m.attnotnull, m.attgenerated, t.typbasetype, greatest(m.modifier, t.typtypmod)
    FROM made m JOIN pg_type t ON t.oid = m.oid WHERE t.typtype = 'd')
SELECT m.attname, m.attnotnull, m.attgenerated <> '', format_type(m.oid, m.modifier), t.typname, t.typtype::text, m.modifier,
       (SELECT i.typname FROM pg_type i WHERE t.typcategory = 'A' AND i.oid = t.typelem)
FROM made m JOIN pg_type t ON t.oid = m.oid WHERE t.typtype <> 'd' ORDER BY m.attnum"""
KEY = """
SELECT a.attname FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
JOIN pg_attribute a ON a.attnum = k.attnum
WHERE i.indrelid = %s AND i.indisprimary AND a.attrelid = i.indrelid ORDER BY k.place"""
PUBLISHED = """
SELECT to_jsonb(p) FROM pg_publication_tables p
WHERE p.pubname = %s AND p.schemaname = %s AND p.tablename = %s"""
SLOT = "SELECT plugin FROM pg_replication_slots WHERE slot_name = %s AND database = current_database()"


def describe_readable_table(
    connection: psycopg.Connection[Any], table: str, publication: str, slot: str, keys: Sequence[str] | None
) -> BackfillTable[PostgresColumn]:
    """The table, if its rows are readable and its changes are sent. Raises ConfigProblem or EnvironmentProblem otherwise,
    with the next step. Columns of types that are not read are there, without a form."""
    if connection.info.server_version < OLDEST:
        raise EnvironmentProblem("The source's server is older than PostgreSQL 14.", next_step="Upgrade it.")
    _refuse_slot(connection, slot)
    schema, name = split_name(table)
    said = connection.execute(PUBLISHED, (publication, schema, name)).fetchone()
    if said is None and not _read_oid(connection, schema, name):
        raise EnvironmentProblem(
            f"The source has no table {table}.", next_step="Check the name: `replicator plan` lists the tables."
        )
    if said is None:
        raise EnvironmentProblem(
            f"Publication {publication} has no table {table}, so its changes would not follow the rows that are read.",
            next_step=f"ALTER PUBLICATION {publication} ADD TABLE {table}; and see `replicator doctor`.",
        )
    columns = _read_columns(connection, schema, name, said[0])
    found = tuple(row[0] for row in connection.execute(KEY, (_read_oid(connection, schema, name),)).fetchall())
    own = refuse_keyless(table, columns, tuple(keys or found))
    return BackfillTable(connection.info.dbname, schema, name, columns, own)


def _refuse_slot(connection: psycopg.Connection[Any], slot: str) -> None:
    found = connection.execute(SLOT, (slot,)).fetchone()
    if found is None:
        raise EnvironmentProblem(
            f"The database has no replication slot {slot}, so changes that follow the snapshot would be lost.",
            next_step="Start the connector first (with `snapshot.mode: no_data`), or correct `database.slot` of the source.",
        )
    if found[0] != "pgoutput":
        raise EnvironmentProblem(
            f"Slot {slot} is of the plugin {found[0]}, in whose stream a snapshot has no exact place.",
            next_step="Use `plugin.name: pgoutput`, or Debezium's own incremental snapshots (docs/reference/debezium.md).",
        )


def _read_oid(connection: psycopg.Connection[Any], schema: str, name: str) -> int:
    row = connection.execute(
        "SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
        (schema, name),
    ).fetchone()
    return 0 if row is None else int(row[0])


def _read_columns(
    connection: psycopg.Connection[Any], schema: str, name: str, published: Mapping[str, Any]
) -> tuple[PostgresColumn, ...]:
    table = f"{schema}.{name}"
    if published.get("rowfilter"):
        raise ConfigProblem(
            f"The publication sends only some rows of {table}, and a backfill reads all.",
            next_step="Take the WHERE out of the publication, and say `where` in the config.",
        )
    rows = connection.execute(COLUMNS, (_read_oid(connection, schema, name),)).fetchall()
    sent = published.get("attnames")
    return tuple(PostgresColumn(n, r, *more) for n, r, made, *more in rows if (n in sent if sent is not None else not made))
