"""Discovery of tables in a PostgreSQL server by `replicator init`."""

from __future__ import annotations

import json
import select
import socket
from socketserver import BaseRequestHandler, ThreadingUnixStreamServer
from threading import Thread
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict

from adapters.observability.checks.source_database import SourceDatabaseCheck
from adapters.sources.discovery.postgres import discover_database
from replicator.cli import main
from replicator.domain.errors import ConfigProblem, EnvironmentProblem, Retryable
from replicator.ports.source import DiscoveredSource, PasswordNeeded

pytestmark = pytest.mark.postgres

TABLES = (
    "CREATE TABLE customers (id int PRIMARY KEY)",
    "CREATE TABLE lines (item int, orders int, PRIMARY KEY (orders, item))",
    "CREATE TABLE audit (entry text)",
    'CREATE SCHEMA "Sales"',
    'CREATE TABLE "Sales"."A b" (id int PRIMARY KEY)',
    "CREATE TEMPORARY TABLE scratch (id int)",
    "CREATE UNLOGGED TABLE cache (id int)",
    "INSERT INTO customers SELECT generate_series(1, 1000)",
    "ANALYZE customers",
)


def run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture
def shop(postgres_dsn: str) -> str:
    run(postgres_dsn, *TABLES)
    return postgres_dsn


def to_url(dsn: str, login: str = "tester", query: str = "") -> str:
    return "postgresql://{0}@{host}:{port}/{dbname}{1}".format(login, query, **conninfo_to_dict(dsn))


def discover(dsn: str, **more: Any) -> DiscoveredSource:
    (found,) = discover_database(to_url(dsn, **more), None)
    return found


def test_tables_are_found_with_keys_rows_and_identities(shop):
    run(shop, "ALTER TABLE lines REPLICA IDENTITY FULL")
    found = {t.name: (t.keys, t.rows, t.identity) for t in discover(shop).tables}
    assert found == {
        "public.customers": (("id",), 1000, "default"),
        "public.lines": (("orders", "item"), 0, "full"),
        "public.audit": ((), 0, "default"),
        "Sales.A b": (("id",), 0, "default"),
    }


def test_partitioned_table_is_one_table_with_all_its_rows(postgres_dsn):
    run(
        postgres_dsn,
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        'CREATE SCHEMA "a,b"',
        'CREATE TABLE "a,b".orders (id int PRIMARY KEY)',
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (9)",
        'CREATE TABLE "Parts.2, old" PARTITION OF parts FOR VALUES FROM (10) TO (19)',
        "INSERT INTO parts VALUES (1), (2)",
        "ANALYZE",
    )
    found = discover(postgres_dsn)
    assert [(table.name, table.rows) for table in found.tables] == [("a,b.orders", 0), ("public.parts", 2)]
    assert "WITH (publish_via_partition_root = true)" in found.sql[-1]
    (connector,) = found.files.values()
    config = json.loads(connector)["config"]
    assert config["table.exclude.list"] == r"public\.Parts\.2\,\ old,public\.parts_1"
    assert config["schema.include.list"] == r"a\,b,public"
    run(postgres_dsn, "CREATE PUBLICATION leaves FOR ALL TABLES")
    name = discover(postgres_dsn).settings["database"]["publication"]
    assert name != "leaves"
    for tables in ("ALL TABLES", 'TABLE parts, "a,b".orders'):
        run(postgres_dsn, f"CREATE PUBLICATION {name} FOR {tables}")
        completing = discover(postgres_dsn).sql
        assert completing == [f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true);"]
        run(postgres_dsn, *completing)
        assert not discover(postgres_dsn).sql
        run(postgres_dsn, f"DROP PUBLICATION {name}")


def test_columns_that_differ_only_in_case_are_reported(shop):
    assert not any("differ only in case" in step for step in discover(shop).steps)
    run(shop, 'ALTER TABLE customers ADD COLUMN "ID" text')
    (step,) = (step for step in discover(shop).steps if "differ only in case" in step)
    assert "public.customers" in step and "columns id, ID" in step


def test_generated_statements_prepare_the_server(shop):
    """After they have run, no statement is left. Deletes from a table without a key are possible."""
    found = discover(shop)
    assert [statement.partition("  --")[0] for statement in found.sql] == [
        "ALTER TABLE public.audit REPLICA IDENTITY FULL;",
        f"CREATE PUBLICATION {found.settings['database']['publication']} FOR ALL TABLES;",
    ]
    run(shop, *found.sql)
    assert not discover(shop).sql
    run(shop, "INSERT INTO audit VALUES ('x')", "DELETE FROM audit")


def test_generated_statements_set_missing_replica_identities(postgres_dsn):
    run(
        postgres_dsn,
        "CREATE TABLE parts (day int, amount int) PARTITION BY RANGE (day)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (day)",
        "CREATE TABLE parts_1_1 PARTITION OF parts_1 DEFAULT",
        "CREATE TABLE parts_2 PARTITION OF parts DEFAULT",
        "CREATE TABLE later (id int PRIMARY KEY DEFERRABLE)",
        "CREATE TABLE nothing (id int PRIMARY KEY)",
        "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
        "CREATE TABLE unindexed (id int NOT NULL, CONSTRAINT one UNIQUE (id))",
        "ALTER TABLE unindexed REPLICA IDENTITY USING INDEX one",
        "ALTER TABLE unindexed DROP CONSTRAINT one",
        "INSERT INTO parts VALUES (1), (10)",
        *(f"INSERT INTO {table} VALUES (1)" for table in ("later", "nothing", "unindexed")),
    )
    found = discover(postgres_dsn).sql
    assert "ALTER TABLE public.nothing REPLICA IDENTITY DEFAULT;" in [one.partition("  --")[0] for one in found]
    assert [one.split()[2] for one in found if one.endswith("each new partition")] == ["public.parts", "public.parts_1"]
    run(postgres_dsn, *found)
    assert not discover(postgres_dsn).sql
    run(postgres_dsn, "UPDATE parts SET amount = 1", *(f"DELETE FROM {one}" for one in ("later", "nothing", "unindexed")))


def test_generated_statements_grant_missing_rights_to_the_role(shop, postgres_server):
    name = conninfo_to_dict(shop)["dbname"]
    role = f"Reader of {name}"
    run(shop, f'CREATE ROLE "{role}" LOGIN', f'GRANT SELECT ON customers, lines, audit TO "{role}"')
    login = role.replace(" ", "%20")
    found = discover(shop, login=login).sql
    assert [statement.partition("  --")[0] for statement in found[:3]] == [
        f'ALTER ROLE "{role}" REPLICATION;',
        f'GRANT USAGE ON SCHEMA "Sales" TO "{role}";',
        f'GRANT SELECT ON ALL TABLES IN SCHEMA "Sales" TO "{role}";',
    ]
    run(shop, *found)
    assert not discover(shop, login=login).sql


def test_complete_publication_is_used(shop):
    run(
        shop,
        "CREATE PUBLICATION a_insert FOR ALL TABLES WITH (publish = 'insert')",
        "CREATE PUBLICATION b_some FOR TABLE customers",
        'CREATE PUBLICATION c_filter FOR TABLE customers WHERE (id > 0), lines, audit, "Sales"."A b"',
        'CREATE PUBLICATION d_all FOR TABLE customers, lines, audit, "Sales"."A b"',
        "ALTER TABLE audit REPLICA IDENTITY FULL",
    )
    found = discover(shop)
    assert (found.settings["database"]["publication"], list(found.sql)) == ("d_all", [])
    assert json.loads(next(iter(found.files.values())))["config"]["publication.name"] == "d_all"


def test_incomplete_publication_is_completed(shop):
    name = discover(shop).settings["database"]["publication"]
    run(shop, f"CREATE PUBLICATION {name} FOR TABLE customers, lines, audit WITH (publish = 'insert')")
    found = discover(shop).sql
    assert f'ALTER PUBLICATION {name} ADD TABLE "Sales"."A b";' in found
    run(shop, *found)
    assert not discover(shop).sql


def test_connector_config_matches_the_url_and_the_source(shop):
    found = discover(shop, login="tester:p%40ss", query="?connect_timeout=9&sslmode=prefer")
    (file,) = found.files
    body = json.loads(found.files[file])
    config, info = body["config"], conninfo_to_dict(shop)
    assert file == f"connectors/{body['name']}.json" and found.settings["connect"]["connector"] == body["name"]
    assert {key: config[f"database.{key}"] for key in ("hostname", "port", "user", "dbname", "password", "sslmode")} == {
        "hostname": info["host"],
        "port": info["port"],
        "user": "tester",
        "dbname": info["dbname"],
        "password": "${env:SOURCE_PASSWORD}",
        "sslmode": "prefer",
    }
    assert (
        config["schema.include.list"] == "Sales,public" and not {"table.include.list", "table.exclude.list"} & config.keys()
    )
    assert found.steps[-1].endswith(f" -d @{file} ${{CONNECT_URL:-http://localhost:8083}}/connectors")
    assert config["slot.name"] == found.settings["database"]["slot"]
    assert found.settings["topics"] == [f"{config['topic.prefix']}.Sales.*", f"{config['topic.prefix']}.public.*"]
    assert found.variables == {
        "SOURCE_DSN": to_url(shop, "tester:p%40ss", "?connect_timeout=9&sslmode=prefer"),
        "SOURCE_PASSWORD": "p@ss",
    }


def test_url_parameters_are_preserved(shop):
    found = discover(shop, query="?options=-c%20statement_timeout%3D5s&sslrootcert=/tmp/x%20y+z.pem&sslmode=disable")
    config, parameters = json.loads(*found.files.values())["config"], conninfo_to_dict(found.dsn)
    assert parameters["options"] == "-c statement_timeout=5s"
    assert parameters["sslrootcert"] == config["database.sslrootcert"] == "/tmp/x y+z.pem"
    with psycopg.connect(found.dsn) as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == ("5s",)


def test_address_is_read_from_the_environment(shop, monkeypatch):
    info = conninfo_to_dict(shop)
    monkeypatch.setenv("PGPORT", info["port"])
    monkeypatch.setenv("PGUSER", "tester")
    (found,) = discover_database(f"postgresql://localhost/{info['dbname']}", None)
    assert found.dsn == to_url(shop).replace("127.0.0.1", "localhost") and found.dsn in found.title
    monkeypatch.setenv("PGHOST", info["host"])
    monkeypatch.setenv("PGDATABASE", info["dbname"])
    (found,) = discover_database("postgresql://", None)
    assert found.dsn == to_url(shop)
    assert json.loads(*found.files.values())["config"]["database.hostname"] == info["host"]


def test_connector_for_a_unix_socket_gets_localhost_and_a_note(shop, tmp_path_factory):
    info, folder = conninfo_to_dict(shop), tmp_path_factory.mktemp("s")
    assert not any("Unix socket" in step for step in discover(shop).steps)

    class Relay(BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", int(info["port"]))) as server:
                ends = {self.request: server, server: self.request}
                while True:
                    for end in select.select(list(ends), [], [])[0]:
                        data = end.recv(65536)
                        if not data:
                            return
                        ends[end].sendall(data)

    with ThreadingUnixStreamServer(str(folder / f".s.PGSQL.{info['port']}"), Relay) as relay:
        Thread(target=relay.serve_forever, daemon=True).start()
        url = f"postgresql://tester@/{info['dbname']}?host={folder}&port={info['port']}"
        (found,) = discover_database(url, None)
        psycopg.connect(found.dsn).close()
        relay.shutdown()
    assert json.loads(*found.files.values())["config"]["database.hostname"] == "localhost"
    assert "Unix socket" in found.steps[0]


def test_password_is_read_from_the_environment(shop, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "from outside")
    assert discover(shop).variables["SOURCE_DSN"] == to_url(shop, "tester:from%20outside")
    assert "from outside" not in discover(shop).title


def test_missing_password_is_requested_and_a_wrong_one_refused(shop, postgres_server):
    access = postgres_server.folder / "data" / "pg_hba.conf"
    access.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{access.read_text()}")
    run(shop, "CREATE ROLE locked LOGIN PASSWORD 'right'", "SELECT pg_reload_conf()")
    url = to_url(shop, "locked")
    with pytest.raises(PasswordNeeded, match=r"locked@.* asks for a password"):
        discover_database(url, None)
    assert discover_database(url, "right")[0].variables["SOURCE_PASSWORD"] == "right"
    for wrong in ((url, "wrong"), (to_url(shop, "locked:wrong"), None)):
        with pytest.raises(EnvironmentProblem, match="password authentication failed"):
            discover_database(*wrong)


def test_written_project_passes_check_and_doctor(shop, postgres_server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = discover(shop)
    run(shop, *source.sql)
    target = to_url(postgres_server.database())
    done = CliRunner().invoke(main, ["init", "--from", to_url(shop), "--to", "./lake", "--to", target])
    assert done.exit_code == 0, done.output
    checked = CliRunner().invoke(main, ["check"])
    assert (checked.exit_code, checked.stderr) == (0, ""), checked.stdout
    options = {**source.settings["database"], "dsn": source.dsn, "tables": ["public.*", "Sales.*"]}
    found = [d.sentence for d in SourceDatabaseCheck("database", options).diagnose() if d.severity != "ok"]
    assert found == [f"There is no replication slot {options['slot']}."]


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("postgresql://h", ConfigProblem, "names no database"),
        ("postgresql://u:hidden@h/", ConfigProblem, "names no database"),
        ("postgresql://u:hidden/d", ConfigProblem, "cannot be read"),
        ("postgresql:u:hidden@h/d", ConfigProblem, "cannot be read"),
        ("postgresql://u:%FFhidden@h/d", ConfigProblem, "cannot be read"),
        ("postgresql://u:%hidden@h/d", ConfigProblem, "cannot be read"),
        ("postgresql://h/d?hidden", ConfigProblem, "cannot be read"),
        ("POSTGRES://u:[hidden\u2100@127.0.0.1:1/d", Retryable, "not reachable"),
        ("postgresql://tester@127.0.0.1:1/d", Retryable, "not reachable"),
    ],
)
def test_invalid_or_unreachable_url_is_refused(url, error, words):
    with pytest.raises(error, match=words) as refused:
        discover_database(url, None)
    assert refused.value.next_step and "hidden" not in str(refused.value)


def test_unknown_role_and_database_are_refused(shop):
    for url in (to_url(shop, "nobody"), to_url(shop) + "x"):
        with pytest.raises(EnvironmentProblem, match="does not exist"):
            discover_database(url, None)
