"""Looks at a PostgreSQL database: its tables, and what Debezium's connector still needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg

from replicator.domain.errors import ConfigProblem
from replicator.ports.discovery import DiscoveredSource, DiscoveredTable, PasswordNeeded
from replicator.shipped import find_shipped

from ...observability.checks.postgres_connection import TIMEOUT_SECONDS, fetch_rows
from ...observability.checks.source_database import ROLE, VIA_ROOT
from ...postgres.answer_timeout import TimeoutConnection
from ...postgres.errors import translate_error

TABLES = """
SELECT n.nspname AS schema, c.relname AS name, quote_ident(n.nspname) AS quoted_schema,
  format('%I.%I', n.nspname, c.relname) AS quoted, c.relkind = 'p' AS is_partitioned, c.relreplident AS identity,
  (SELECT sum(CASE WHEN part.reltuples > 0 THEN part.reltuples ELSE pg_stat_get_live_tuples(part.oid) END)::bigint
   FROM pg_class part WHERE part.relkind = 'r'
   AND (part.oid = c.oid OR part.oid IN (SELECT relid FROM pg_partition_tree(c.oid)))) AS rows,
  ARRAY(SELECT a.attname::text FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k(number, place)
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
        WHERE i.indrelid = c.oid AND i.indisprimary ORDER BY k.place) AS keys,
  has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AS is_readable
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('information_schema', '_replicator') AND n.nspname NOT LIKE 'pg\\_%' ORDER BY 1, 2"""
PARTITIONS = """
SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relispartition ORDER BY 1"""
"""A snapshot sends them as tables of their own, which never change again: changes have the partitioned table's name."""
TWINS = """
SELECT n.nspname || '.' || c.relname, string_agg(a.attname, ', ' ORDER BY a.attnum)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('information_schema', '_replicator') AND n.nspname NOT LIKE 'pg\\_%'
GROUP BY c.oid, 1, lower(a.attname) HAVING count(*) > 1 ORDER BY 1"""
"""Columns of a table that differ only in case."""
PUBLICATIONS = """
SELECT p.pubname, p.puballtables, p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate,
       ARRAY(SELECT t.schemaname || '.' || t.tablename FROM pg_publication_tables t
             WHERE t.pubname = p.pubname AND to_jsonb(t) ->> 'rowfilter' IS NULL)
FROM pg_publication p ORDER BY p.puballtables DESC, 1"""
"""Each publication, whether it sends all kinds of changes, and its tables. A partitioned table counts if it is published
under its own name, and a table with a row filter does not."""
WITHOUT_IDENTITY = """
SELECT format('%I.%I', n.nspname, c.relname), c.relkind = 'p',
  EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('information_schema', '_replicator') AND n.nspname NOT LIKE 'pg\\_%'
  AND c.relreplident <> 'f' AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND CASE c.relreplident
    WHEN 'd' THEN i.indisprimary AND i.indimmediate WHEN 'i' THEN i.indisreplident ELSE false END) ORDER BY 1"""
"""Tables and partitions that have no replica identity, whether they are partitioned, and whether their key can be one: a
deferrable key cannot. Partitions have identities of their own."""
IDENTITIES = {"d": "default", "n": "nothing", "f": "full", "i": "index"}
CONNECTOR = "connectors/postgres-source-connector.json"
WORKER = "http://localhost:8083"
PASSWORD = "SOURCE_PASSWORD"  # noqa: S105 - the name of a variable
TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey")
"""Parameters of a URL that the connector has as `database.NAME`."""


class TableRow(NamedTuple):
    """A row of `TABLES`. `identity`: a key of `IDENTITIES`."""

    schema: str
    name: str
    quoted_schema: str
    quoted: str
    is_partitioned: bool
    identity: str
    rows: int
    keys: list[str]
    is_readable: bool


def discover_database(url: str, password: str | None) -> Sequence[DiscoveredSource]:
    """`ports.discovery.Discover` of PostgreSQL: one source, which reads the topics of a Debezium connector."""
    url = _fill_address(url)
    try:
        with TimeoutConnection.connect(
            url,
            password=password,
            connect_timeout=TIMEOUT_SECONDS,
            application_name="replicator init",
            autocommit=True,
        ) as connection:
            return [_describe_database(url, connection)]
    except psycopg.Error as error:
        words, has_password = str(error), bool(password or urlsplit(url).password)
        if "no password supplied" in words or ("password authentication failed" in words and not has_password):
            where = _strip_password(url)
            step = "Set PGPASSWORD, add a line to ~/.pgpass, or run this command on a terminal, where it asks."
            raise PasswordNeeded(f"{where} asks for a password", next_step=step) from None
        problem = translate_error(error, "connecting")
        problem.next_step = problem.next_step or "Start the server, or correct host and port in the URL."
        raise problem from error


def _fill_address(url: str) -> str:
    """The URL with a host, because a connector reaches no Unix socket. Raises ConfigProblem for one without a database."""
    parts = urlsplit(url)
    if len(parts.path) < 2 or parts.fragment:
        example = "postgresql://USER@HOST:PORT/DATABASE"
        raise ConfigProblem(f"{_strip_password(url)} names no database", next_step=f"Write {example}, percent-encoded.")
    user, at, place = parts.netloc.rpartition("@")
    return urlunsplit(("postgresql", f"{user}{at}{place or 'localhost'}", parts.path, parts.query, ""))


def _strip_password(url: str) -> str:
    parts = urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{user.partition(':')[0]}{at}{place}{parts.path}"


def _describe_database(url: str, connection: psycopg.Connection) -> DiscoveredSource:
    _, database, level, may_replicate = fetch_rows(connection, ROLE)[0]
    user, server = fetch_rows(connection, "SELECT quote_ident(current_user), pg_postmaster_start_time()")[0]
    tables = [TableRow(*row) for row in fetch_rows(connection, TABLES)]
    name = re.sub(r"[^A-Za-z0-9_]", "_", database)[:40]
    name = name if name[:1].isalpha() else f"db_{name}"
    slot, schemas = _name_slot(name), list(dict.fromkeys(table.schema for table in tables))
    publication, published = _choose_publication(slot, tables, fetch_rows(connection, PUBLICATIONS))
    named = {"schema.include.list": schemas, "table.exclude.list": [row[0] for row in fetch_rows(connection, PARTITIONS)]}
    file = f"connectors/{name}.json"
    return DiscoveredSource(
        name=name,
        title=f"PostgreSQL {connection.info.server_version // 10000} at {_strip_password(url)}",
        settings={
            "format": "debezium_json",
            "transport": "kafka",
            "bootstrap_servers": "${KAFKA_BOOTSTRAP_SERVERS:-localhost:9092}",
            "topics": [f"{name}.{_to_topic(schema)}.*" for schema in schemas],
            "database": {"dsn": "${SOURCE_DSN}", "publication": publication, "slot": slot},
            "connect": {"url": f"${{CONNECT_URL:-{WORKER}}}", "connector": name},
        },
        tables=[
            DiscoveredTable(f"{table.schema}.{table.name}", tuple(table.keys), table.rows, IDENTITIES[table.identity])
            for table in tables
        ],
        variables={"SOURCE_DSN": _build_dsn(url, connection)}
        | ({PASSWORD: connection.info.password} if connection.info.password else {}),
        files={file: _build_connector(name, url, connection, named, publication)},
        sql=[
            *_list_statements(user, level, may_replicate, tables, fetch_rows(connection, WITHOUT_IDENTITY)),
            *published,
        ],
        steps=[
            *(
                f"# Debezium refuses {table}, because its columns {columns} differ only in case: rename one of them."
                for table, columns in fetch_rows(connection, TWINS)
            ),
            "# The broker is taken to be at localhost:9092, the Kafka Connect worker at localhost:8083. Write others into",
            "# .env: KAFKA_BOOTSTRAP_SERVERS=..., CONNECT_URL=.... If registering answers 'password authentication failed',",
            "# the worker lacks the variable SOURCE_PASSWORD of .env, or the env provider.",
            f"curl -X POST -H 'Content-Type: application/json' -d @{file} ${{CONNECT_URL:-{WORKER}}}/connectors",
        ],
        dsn=_build_dsn(url, connection),
        identity=f"{server} {database}",
    )


def _list_statements(
    user: str, level: str, may_replicate: bool, tables: Sequence[TableRow], unidentified: Sequence[tuple[str, bool, bool]]
) -> Iterator[str]:
    """The statements that prepare server, role and tables."""
    if level != "logical":
        yield "ALTER SYSTEM SET wal_level = logical;  -- then restart the server; on RDS: rds.logical_replication = 1"
    if not may_replicate:
        yield f"ALTER ROLE {user} REPLICATION;  -- on RDS: GRANT rds_replication TO {user};"
    for schema in dict.fromkeys(table.quoted_schema for table in tables if not table.is_readable):
        yield f"GRANT USAGE ON SCHEMA {schema} TO {user};"
        yield f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {user};"
    for table, is_partitioned, has_key in unidentified:
        identity = "DEFAULT" if has_key else "FULL"
        reason = "published without one, it refuses UPDATE and DELETE"
        more = "; so does each new partition" if is_partitioned else ""
        yield f"ALTER TABLE {table} REPLICA IDENTITY {identity};  -- {reason}{more}"


def _choose_publication(
    name: str, tables: Sequence[TableRow], existing: Sequence[tuple[str, bool, bool, list[str]]]
) -> tuple[str, list[str]]:
    """A publication that has all changes of all tables, or `name` with the statements that make it one."""
    missing = {p: [t for t in tables if f"{t.schema}.{t.name}" not in covered] for p, _, _, covered in existing}
    complete = next((p for p, _, sends_all, _ in existing if sends_all and not missing[p]), None)
    if complete is not None:
        return complete, []
    if name in missing:
        has_all, sends_all = next((has_all, sends_all) for p, has_all, sends_all, _ in existing if p == name)
        added = ", ".join(table.quoted for table in missing[name] if not has_all)
        options = [VIA_ROOT] * any(table.is_partitioned for table in missing[name])
        options += ["publish = 'insert, update, delete, truncate'"] * (not sends_all)
        changed = f"ALTER PUBLICATION {name} SET ({', '.join(options)});"
        return name, [f"ALTER PUBLICATION {name} ADD TABLE {added};"] * bool(added) + [changed] * bool(options)
    root = f" WITH ({VIA_ROOT})" if any(table.is_partitioned for table in tables) else ""
    return name, [f"CREATE PUBLICATION {name} FOR ALL TABLES{root};  -- also tables that are created later"]


def _build_dsn(url: str, connection: psycopg.Connection) -> str:
    """The URL with user and password, wherever libpq found them."""
    info, parts = connection.info, urlsplit(url)
    login = ":".join(quote(text, safe="") for text in (info.user, info.password) if text)
    query = urlencode([pair for pair in parse_qsl(parts.query) if pair[0] not in ("user", "password")])
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}", query=query))


def _build_connector(
    name: str, url: str, connection: psycopg.Connection, named: Mapping[str, Sequence[str]], publication: str
) -> str:
    """The shipped connector for this database. The worker fills in the password. `named`: properties that list names."""
    config = json.loads(find_shipped(CONNECTOR).read_text())["config"]
    for key in ("database.password", "table.include.list"):
        del config[key]
    info = connection.info
    config |= {"database.hostname": info.host, "database.port": str(info.port), "database.user": info.user}
    config |= {"database.dbname": info.dbname} | ({"database.password": f"${{env:{PASSWORD}}}"} if info.password else {})
    config |= {f"database.{key}": value for key, value in parse_qsl(urlsplit(url).query) if key in TLS}
    config |= {"topic.prefix": name, "slot.name": _name_slot(name), "publication.name": publication}
    config |= {key: ",".join(re.escape(name).replace(",", r"\,") for name in names) for key, names in named.items() if names}
    return json.dumps({"name": name, "config": config}, indent=2) + "\n"


def _name_slot(name: str) -> str:
    """The slot of the connector, and its publication unless there is another one."""
    return f"replicator_{name.lower()}"


def _to_topic(name: str) -> str:
    """The part of a topic's name that Debezium makes of a schema."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)
