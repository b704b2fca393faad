"""Check of a PostgreSQL source database: logical decoding, publication, slot and role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg

from replicator.domain.patterns import find_best, matches
from replicator.ports.runtime import Diagnosis

from ...postgres.connection import check_transport, choose_diagnosis, fetch_rows, run_checks

ROLE = """
SELECT current_user, current_database(), current_setting('wal_level'), r.rolsuper OR r.rolreplication OR EXISTS (
    SELECT FROM pg_roles m WHERE m.rolname IN ('rds_replication', 'cloudsqlreplica') AND pg_has_role(m.oid, 'MEMBER'))
FROM pg_roles r WHERE r.rolname = current_user"""
PUBLICATION = """
SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = %s"""
VIA_ROOT = "publish_via_partition_root = true"
PARTITIONED = "SELECT FROM pg_class WHERE relkind = 'p' LIMIT 1"
TABLES = """
SELECT n.nspname || '.' || c.relname,
       EXISTS (SELECT FROM pg_publication_tables p WHERE p.pubname = %s AND (
           (p.schemaname = n.nspname AND p.tablename = c.relname)
           OR (c.relkind = 'p' AND (p.schemaname, p.tablename) IN (
               SELECT m.nspname, l.relname FROM pg_partition_tree(c.oid) t
               JOIN pg_class l ON l.oid = t.relid JOIN pg_namespace m ON m.oid = l.relnamespace)))),
       c.relreplident <> 'd' OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1"""

GENERATED = """
SELECT n.nspname || '.' || c.relname, array_agg(a.attname::text ORDER BY a.attnum)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attgenerated <> '' AND NOT a.attisdropped
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND EXISTS (
    SELECT FROM pg_publication_tables p WHERE p.pubname = %s
    AND NOT (current_setting('server_version_num')::int >= 180000 AND to_jsonb(p) -> 'attnames' ? a.attname)
    AND ((p.schemaname = n.nspname AND p.tablename = c.relname)
         OR (c.relkind = 'p' AND (p.schemaname, p.tablename) IN (
             SELECT m.nspname, l.relname FROM pg_partition_tree(c.oid) t
             JOIN pg_class l ON l.oid = t.relid JOIN pg_namespace m ON m.oid = l.relnamespace))))
GROUP BY 1 ORDER BY 1"""
"""Generated columns that the publication does not send. Since PostgreSQL 18 it can send them: they are in `attnames`."""
LACKED = """
SELECT n.nspname || '.' || c.relname, a.attname,
       a.attstorage <> 'p' FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p' AND c.relreplident <> 'f'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND NOT EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = c.oid AND a.attnum = ANY (i.indkey)
      AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END)
ORDER BY 1, a.attnum"""
"""Columns that a delete does not send, and whether an update may also leave them out if they are unchanged."""
IDENTITIES = """
SELECT n.nspname || '.' || c.relname, c.relreplident = 'f',
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND NOT i.indimmediate)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1"""
"""For each table: whether deletes contain the whole row, and whether its primary key is deferrable."""
UNSENT = {
    "deletes": "deletes do not send it, and are rejected",
    "updates": "an update that leaves a large value as it is does not send it, and is rejected",
}


class SourceDatabaseCheck:
    """`ports.runtime.Check`. Options:

    - `dsn`, `publication`, `slot`, `tables` (names and globs), `replica_identity` (as in the source's config)
    - `whole_rows`: columns that a lane needs in all changes of a kind. Each item has the `columns` of tables of `match`, the
      config `key` and the `lane`, and the kind `of` changes: deletes or updates.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._dsn = str(options["dsn"])
        self._publication = str(options["publication"])
        self._slot = str(options["slot"])
        self._wanted = tuple(options.get("tables", ()))
        self._whole_rows = tuple(options.get("whole_rows", ()))
        self._identity = options.get("replica_identity")

    def diagnose(self) -> Sequence[Diagnosis]:
        return list(run_checks(self._name, self._dsn, self._check_database))

    def _check_database(self, connection: psycopg.Connection) -> Iterator[Diagnosis]:
        user, database, level, may_replicate = fetch_rows(connection, ROLE)[0]
        yield Diagnosis("ok", self._name, f"Database {database} answers to {user}.")
        yield from check_transport(connection, self._name)
        yield choose_diagnosis(
            self._name,
            level == "logical",
            "wal_level is logical.",
            f"wal_level is {level}, so nothing can be decoded from the log.",
            "ALTER SYSTEM SET wal_level = logical; then restart the server (on RDS: rds.logical_replication = 1).",
        )
        yield choose_diagnosis(
            self._name,
            may_replicate,
            f"Role {user} may replicate.",
            f"Role {user} may not replicate.",
            f"As a superuser: ALTER ROLE {user} REPLICATION; (on RDS: GRANT rds_replication TO {user};)",
        )
        yield from self._check_publications(connection)
        yield from self._check_sent_columns(fetch_rows(connection, LACKED))
        yield from self._check_identities(fetch_rows(connection, IDENTITIES))
        yield from check_slot(self._name, connection, self._slot)

    def _check_publications(self, connection: psycopg.Connection) -> Iterator[Diagnosis]:
        name = self._publication
        rows = fetch_rows(connection, PUBLICATION, name)
        if not rows:
            root = f" WITH ({VIA_ROOT})" if fetch_rows(connection, PARTITIONED) else ""
            step = f"In this database: CREATE PUBLICATION {name} FOR ALL TABLES{root}; (or FOR TABLES IN SCHEMA public)."
            yield Diagnosis("error", self._name, f"There is no publication {name}.", step)
            return
        if not rows[0][0]:
            step = f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate');"
            yield Diagnosis("error", self._name, f"Publication {name} leaves out some kinds of changes.", step)
        yield from self._check_tables(fetch_rows(connection, TABLES, name))
        for table, columns in fetch_rows(connection, GENERATED, name):
            if not any(matches(wanted, table) for wanted in self._wanted):
                continue
            sentence = (
                f"Table {table} has generated columns that its changes do not send: {_join_names(columns)}. A snapshot or a "
                "backfill fills them, and the first update of a row makes them NULL."
            )
            step = (
                "Leave them out with column.exclude.list of the connector, and compute them in the target with "
                f"`columns: {{{columns[0]}: {{expression: ...}}}}`. From PostgreSQL 18 on: "
                f"ALTER PUBLICATION {name} SET (publish_generated_columns = stored);"
            )
            yield Diagnosis("warning", self._name, sentence, step)

    def _check_tables(self, tables: Sequence[tuple[str, bool, bool]]) -> Iterator[Diagnosis]:
        rows = [t for t in tables if any(matches(name, t[0]) for name in self._wanted)]
        absent = [name for name in self._wanted if not any(matches(name, t[0]) for t in tables)]
        missing = [name for name, published, _ in rows if not published]
        if missing:
            sentence = f"Publication {self._publication} does not cover {_join_names(missing)}, whose changes never arrive."
            step = f"ALTER PUBLICATION {self._publication} ADD TABLE {', '.join(missing)};"
            yield Diagnosis("error", self._name, sentence, step)
        elif rows:
            yield Diagnosis(
                "ok", self._name, f"Publication {self._publication} covers the tables of the config ({len(rows)})."
            )
        if absent:
            sentence = f"No table of the database is called {_join_names(absent)}."
            yield Diagnosis("warning", self._name, sentence, "Correct `match` under `tables`, or create the table.")
        for name in (name for name, published, told_apart in rows if published and not told_apart):
            sentence = f"Table {name} has no primary key, so while it is published PostgreSQL refuses to update or delete."
            yield Diagnosis("warning", self._name, sentence, f"ALTER TABLE {name} REPLICA IDENTITY FULL; or give it a key.")

    def _check_sent_columns(self, lacked: Sequence[tuple[str, str, bool]]) -> Iterator[Diagnosis]:
        """A warning for each column that a lane needs but changes do not send."""
        for need in self._whole_rows:
            # Only of tables whose best match in the config is this one.
            tables = [name for name, *_ in lacked if find_best(self._wanted, name) == need["match"]]
            for table in dict.fromkeys(tables):
                columns = {c for name, c, is_large in lacked if name == table and (is_large or need["of"] == "deletes")}
                for column in (c for c in need["columns"] if c in columns):
                    sentence = (
                        f"Lane {need['lane']} needs column {column} of {table} for `{need['key']}`: {UNSENT[need['of']]}."
                    )
                    yield Diagnosis("warning", self._name, sentence, f"ALTER TABLE {table} REPLICA IDENTITY FULL;")

    def _check_identities(self, tables: Sequence[tuple[str, bool, bool]]) -> Iterator[Diagnosis]:
        """
        A warning per table if its `replica_identity` is wrong, or missing where that may lose rows: see
        docs/explanation/key-changes.md.
        """
        for table, is_full, is_deferrable in tables:
            if not any(matches(name, table) for name in self._wanted):
                continue
            identity = self._identity
            if isinstance(identity, Mapping):
                identity = identity.get(find_best(identity, table))
            fits = "full" if is_full else "default"
            if identity is not None and identity != fits:
                sentence = (
                    f"Table {table} has REPLICA IDENTITY {fits.upper()}, and the source says `replica_identity: {identity}`."
                )
            elif identity is None and is_full and is_deferrable:
                sentence = (
                    f"Keys of {table} are deferrable, so rows may exchange them. The config does not state that deletes "
                    "have whole rows."
                )
            else:
                continue
            step = f"Write `replica_identity: {{{table}: {fits}}}` for the source."
            yield Diagnosis("warning", self._name, sentence, step)


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


# The replication slot: it exists, has a reader, and does not retain too much log.

GIB = 1024**3
SLOT = """
SELECT s.active, s.wal_status, s.plugin, s.database = current_database(),
       pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
                       s.restart_lsn)::bigint,
       (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size')
FROM pg_replication_slots s WHERE s.slot_name = %s"""
MUCH = 4 * GIB


def check_slot(name: str, connection: psycopg.Connection, slot: str) -> Iterator[Diagnosis]:
    """The diagnoses of a slot. `name`: their subject."""
    rows = fetch_rows(connection, SLOT, slot)
    if not rows:
        step = "The connector creates it when it starts. Read the connector's log, and check that `slot` is its slot.name."
        yield Diagnosis("warning", name, f"There is no replication slot {slot}.", step)
        return
    active, status, plugin, is_own, size, limit_mb = rows[0]
    if not is_own or plugin != "pgoutput":
        where = f"uses {plugin}" if is_own else "belongs to another database"
        yield Diagnosis("error", name, f"Replication slot {slot} {where}.", "Give the connector another slot.name.")
    if status == "lost":
        sentence = f"The server has thrown away log that slot {slot} still needed (wal_status is lost): changes are gone."
        step = (
            f"SELECT pg_drop_replication_slot('{slot}'); then restart the connector with snapshot.mode=when_needed, and "
            "raise max_slot_wal_keep_size."
        )
        yield Diagnosis("error", name, sentence, step)
        return
    yield _check_reader(name, slot, bool(active))
    yield _check_retained(name, slot, size or 0, limit_mb, status)


def _check_reader(name: str, slot: str, active: bool) -> Diagnosis:
    if active:
        return Diagnosis("ok", name, f"Replication slot {slot} is being read.")
    step = "Start the connector: until then the server keeps all log. Drop the slot if it is not needed any more."
    return Diagnosis("warning", name, f"Replication slot {slot} has no reader.", step)


def _check_retained(name: str, slot: str, size: int, limit_mb: int, status: str) -> Diagnosis:
    """Compare the log retained for the slot with the limit (-1: none) above which the server deletes it."""
    limit = limit_mb * 1024 * 1024
    sentence = f"Slot {slot} holds back {_format_size(size)} of log"
    if limit_mb < 0:
        sentence += ", and nothing bounds that."
        step = "See why the connector is behind; set max_slot_wal_keep_size so that the disk cannot fill up."
        return Diagnosis("warning", name, sentence, step) if size > MUCH else Diagnosis("ok", name, sentence)
    sentence += f" of the {_format_size(limit)} that max_slot_wal_keep_size allows."
    step = "See why the connector is behind, and raise max_slot_wal_keep_size: beyond it changes are lost."
    if status == "unreserved" or size > 0.9 * limit:
        return Diagnosis("error", name, sentence, step)
    return Diagnosis("warning" if size > 0.5 * limit else "ok", name, sentence, step if size > 0.5 * limit else "")


def _format_size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"
