"""Looks at a PostgreSQL database: its tables, and what Debezium's connector still needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote, urlencode, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from replicator.domain.errors import ConfigProblem
from replicator.ports.source import DiscoveredSource, DiscoveredTable, PasswordNeeded
from replicator.shipped import find_shipped

from ...observability.checks.source_database import ROLE, VIA_ROOT
from ...postgres.connection import TIMEOUT_SECONDS, TimeoutConnection, fetch_rows
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
             WHERE t.pubname = p.pubname AND to_jsonb(t) ->> 'rowfilter' IS NULL),
       ARRAY(SELECT format('%I.%I', n.nspname, c.relname) FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid
             JOIN pg_namespace n ON n.oid = c.relnamespace WHERE r.prpubid = p.oid AND c.relkind = 'p')
FROM pg_publication p ORDER BY p.puballtables DESC, 1"""
"""Each publication, whether it sends all kinds of changes, its tables, and the partitioned tables it was made for. A
partitioned table counts as a table if it is published under its own name, and a table with a row filter does not."""
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
ADDRESS = ("host", "hostaddr", "port", "user", "dbname")
"""Parameters that the environment may have (`PGHOST` and so on)."""
IN_AUTHORITY = ("host", "port", "user", "password", "dbname")
SOCKET_STEP = "# Debezium reaches no Unix socket: write the address of the server into {file}, unless it is localhost."
URL_STEP = "Write postgresql://USER@HOST:PORT/DATABASE, percent-encoded."


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
    """`ports.source.Discover` of PostgreSQL: one source, which reads the topics of a Debezium connector."""
    address = _read_url(url)
    try:
        with TimeoutConnection.connect(
            make_conninfo(**address),
            password=password,
            connect_timeout=TIMEOUT_SECONDS,
            application_name="replicator init",
            autocommit=True,
        ) as connection:
            return [_describe_database(address, connection)]
    except psycopg.Error as error:
        words, has_password = str(error), bool(password or "password" in address)
        if "no password supplied" in words or ("password authentication failed" in words and not has_password):
            where = "@".join(address[name] for name in ("user", "host") if name in address)
            step = "Set PGPASSWORD, add a line to ~/.pgpass, or run this command on a terminal, where it asks."
            raise PasswordNeeded(f"{where} asks for a password", next_step=step) from None
        problem = translate_error(error, "connecting")
        problem.next_step = problem.next_step or "Start the server, or correct host and port in the URL."
        raise problem from error


def _read_url(url: str) -> dict[str, str]:
    """libpq's parameters of the URL and, for `ADDRESS`, of the environment. The default host is localhost, because a
    connector reaches no Unix socket.

    Raises ConfigProblem, which quotes nothing: a part of the password may be in the wrong place.
    """
    try:
        parsed = conninfo_to_dict(re.sub("^postgres(ql)?:", "postgresql:", url, flags=re.IGNORECASE))
        parameters = {name: str(value) for name, value in parsed.items() if value}
        if not re.fullmatch(r"[\d,]*", parameters.get("port", "")):
            raise ValueError("port")
    except (psycopg.ProgrammingError, ValueError):
        raise ConfigProblem("the URL of the database cannot be read", next_step=URL_STEP) from None
    if "service" in parameters:
        return parameters
    defaults = {option.keyword.decode(): option.val.decode() for option in psycopg.pq.Conninfo.get_defaults() if option.val}
    address = {name: defaults[name] for name in ADDRESS if name in defaults} | parameters
    if "dbname" not in address:
        raise ConfigProblem("the URL names no database", next_step=URL_STEP)
    return address if "hostaddr" in address else {"host": "localhost", **address}


def _describe_database(address: Mapping[str, str], connection: psycopg.Connection) -> DiscoveredSource:
    _, database, level, may_replicate = fetch_rows(connection, ROLE)[0]
    user, server = fetch_rows(connection, "SELECT quote_ident(current_user), pg_postmaster_start_time()")[0]
    tables = [TableRow(*row) for row in fetch_rows(connection, TABLES)]
    name = re.sub(r"[^A-Za-z0-9_]", "_", database)[:40]
    name = name if name[:1].isalpha() else f"db_{name}"
    slot, schemas = _name_slot(name), list(dict.fromkeys(table.schema for table in tables))
    topic_parts = [re.sub(r"[^A-Za-z0-9._-]", "_", schema) for schema in schemas]  # As Debezium does.
    publication, published = _choose_publication(slot, tables, fetch_rows(connection, PUBLICATIONS))
    lists = {"schema.include.list": schemas, "table.exclude.list": [row[0] for row in fetch_rows(connection, PARTITIONS)]}
    file, info = f"connectors/{name}.json", connection.info
    dsn = _build_url(info, info.password, {key: value for key, value in address.items() if key not in IN_AUTHORITY})
    return DiscoveredSource(
        name=name,
        title=f"PostgreSQL {info.server_version // 10000} at {_build_url(info, '', {})}",
        settings={
            "format": "debezium_json",
            "transport": "kafka",
            "bootstrap_servers": "${KAFKA_BOOTSTRAP_SERVERS:-localhost:9092}",
            "topics": [f"{name}.{part}.*" for part in topic_parts],
            "database": {"dsn": "${SOURCE_DSN}", "publication": publication, "slot": slot},
            "connect": {"url": f"${{CONNECT_URL:-{WORKER}}}", "connector": name},
        },
        tables=[
            DiscoveredTable(f"{table.schema}.{table.name}", tuple(table.keys), table.rows, IDENTITIES[table.identity])
            for table in tables
        ],
        variables={"SOURCE_DSN": dsn} | ({PASSWORD: info.password} if info.password else {}),
        files={file: _build_connector(name, address, info, lists, publication)},
        sql=[
            *_list_statements(user, level, may_replicate, tables, fetch_rows(connection, WITHOUT_IDENTITY)),
            *published,
        ],
        steps=[
            *([SOCKET_STEP.format(file=file)] * _has_socket(info)),
            *(
                f"# Debezium refuses {table}, because its columns {columns} differ only in case: rename one of them."
                for table, columns in fetch_rows(connection, TWINS)
            ),
            "# The broker is taken to be at localhost:9092, the Kafka Connect worker at localhost:8083. Write others into",
            "# .env: KAFKA_BOOTSTRAP_SERVERS=..., CONNECT_URL=.... If registering answers 'password authentication failed',",
            "# the worker lacks the variable SOURCE_PASSWORD of .env, or the env provider.",
            f"curl -X POST -H 'Content-Type: application/json' -d @{file} ${{CONNECT_URL:-{WORKER}}}/connectors",
        ],
        dsn=dsn,
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
    name: str, tables: Sequence[TableRow], existing: Sequence[tuple[str, bool, bool, list[str], list[str]]]
) -> tuple[str, list[str]]:
    """A publication that has all changes of all tables, or `name` with the statements that make it one."""
    missing = {p: [t for t in tables if f"{t.schema}.{t.name}" not in covered] for p, _, _, covered, _ in existing}
    complete = next((p for p, _, sends_all, *_ in existing if sends_all and not missing[p]), None)
    if complete is not None:
        return complete, []
    if name in missing:
        _, has_all, sends_all, _, partitioned = next(row for row in existing if row[0] == name)
        added = ", ".join(table.quoted for table in missing[name] if not has_all and table.quoted not in partitioned)
        options = [VIA_ROOT] * any(table.is_partitioned for table in missing[name])
        options += ["publish = 'insert, update, delete, truncate'"] * (not sends_all)
        changed = f"ALTER PUBLICATION {name} SET ({', '.join(options)});"
        return name, [f"ALTER PUBLICATION {name} ADD TABLE {added};"] * bool(added) + [changed] * bool(options)
    root = f" WITH ({VIA_ROOT})" if any(table.is_partitioned for table in tables) else ""
    return name, [f"CREATE PUBLICATION {name} FOR ALL TABLES{root};  -- also tables that are created later"]


def _build_url(info: psycopg.ConnectionInfo, password: str, parameters: Mapping[str, str]) -> str:
    """The URL of a connection, wherever libpq found its parts."""
    login = ":".join(quote(text, safe="") for text in (info.user, password) if text)
    host = quote(info.host, safe=":")
    address = f"[{host}]" if ":" in host else host
    query = urlencode(parameters, quote_via=quote)
    return urlunsplit(("postgresql", f"{login}@{address}:{info.port}", quote(info.dbname, safe=""), query, ""))


def _build_connector(
    name: str,
    address: Mapping[str, str],
    info: psycopg.ConnectionInfo,
    lists: Mapping[str, Sequence[str]],
    publication: str,
) -> str:
    """The shipped connector for this database. The worker fills in the password. `lists`: properties that list names."""
    config = json.loads(find_shipped(CONNECTOR).read_text())["config"]
    for key in ("database.password", "table.include.list"):
        del config[key]
    host = "localhost" if _has_socket(info) else info.host
    config |= {"database.hostname": host, "database.port": str(info.port), "database.user": info.user}
    config |= {"database.dbname": info.dbname} | ({"database.password": f"${{env:{PASSWORD}}}"} if info.password else {})
    config |= {f"database.{key}": address[key] for key in TLS if key in address}
    config |= {"topic.prefix": name, "slot.name": _name_slot(name), "publication.name": publication}
    config |= {key: ",".join(re.escape(name).replace(",", r"\,") for name in names) for key, names in lists.items() if names}
    return json.dumps({"name": name, "config": config}, indent=2) + "\n"


def _has_socket(info: psycopg.ConnectionInfo) -> bool:
    return info.host.startswith(("/", "@"))


def _name_slot(name: str) -> str:
    """The slot of the connector, and its publication unless there is another one."""
    return f"replicator_{name.lower()}"
