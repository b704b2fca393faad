"""docker-compose.yml without Docker: its shape, its mounts, and that it matches the embedded stack."""

from __future__ import annotations

import json
import re
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from paths import GOLDEN, PROJECT
from ruamel.yaml import YAML
from support.dockerfile import read_stages

from adapters.stack.connect import WORKER, ConnectService, read_connector
from adapters.stack.embedded import default_services
from adapters.stack.kafka import BROKER
from adapters.stack.layout import DATABASES, HOST, SUPERUSER, SUPERUSER_PASSWORD, StackHome, StackPorts
from adapters.stack.postgres import SETTINGS
from replicator.settings import load_settings

COMPOSE: dict[str, Any] = YAML(typ="safe").load(PROJECT / "docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ALWAYS = {"postgres-source", "postgres-datalake", "postgres-target", "kafka", "debezium", "kafka-ui"}
PROFILES = {"spark": {"spark-master", "spark-worker"}, "daemon": {"replicator"}}
"""Services that start only with their profile. `scripts/start.sh` names spark, and never daemon."""

WORDS = {"type": "array", "items": {"type": "string"}}
SERVICE_SCHEMA = {
    "type": "object",
    "required": ["image", "container_name", "ports", "healthcheck", "restart"],
    "properties": {
        "image": {"type": "string", "pattern": r"^[a-z0-9./-]+:[A-Za-z0-9._-]*\d[A-Za-z0-9._-]*$"},
        "container_name": {"type": "string"},
        "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
        "command": WORDS,
        "environment": {"type": "object", "additionalProperties": {"type": "string"}},
        "ports": {"type": "array", "items": {"type": "string", "pattern": r"^127\.0\.0\.1:\d+:\d+$"}},
        "volumes": {"type": "array", "items": {"type": "string", "pattern": r"^[^:]+:/[^:]+(:ro)?$"}},
        "depends_on": {
            "type": "object",
            "additionalProperties": {"const": {"condition": "service_healthy"}},
        },
        "healthcheck": {
            "type": "object",
            "required": ["test", "interval", "timeout", "retries"],
        },
    },
}


def host_ports(service: str) -> dict[int, int]:
    """Port on the host -> port inside."""
    pairs = (port.split(":") for port in SERVICES[service]["ports"])
    return {int(host): int(inside) for _, host, inside in pairs}


def environment(service: str) -> dict[str, str]:
    return dict(SERVICES[service]["environment"])


def test_services_are_those_of_the_contract() -> None:
    assert set(SERVICES) == ALWAYS.union(*PROFILES.values())
    assert {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service} == {
        name: [profile] for profile, names in PROFILES.items() for name in names
    }
    assert all(service["container_name"] == name for name, service in SERVICES.items())


def test_file_is_valid_compose() -> None:
    schema = json.loads((GOLDEN / "compose" / "compose-spec.json").read_text())
    jsonschema.validate(COMPOSE, schema, jsonschema.Draft7Validator)


@pytest.mark.parametrize("name", SERVICES)
def test_service_is_valid(name: str) -> None:
    jsonschema.validate(SERVICES[name], SERVICE_SCHEMA)


def test_mounts_and_dependencies_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (PROJECT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
        assert set(service.get("depends_on", ())) <= set(SERVICES)
    assert set(COMPOSE) == {"name", "services", "secrets", "volumes", "x-postgres", "x-spark"}


def test_embedded_services_have_the_same_names() -> None:
    home = StackHome.in_project(PROJECT)
    assert {service.name for service in default_services(home)} == ALWAYS - {"kafka-ui"}


def test_ports_equal_those_of_the_embedded_stack() -> None:
    ports = StackPorts()
    assert host_ports("postgres-source") == {ports.source: 5432}
    assert host_ports("postgres-datalake") == {ports.datalake: 5432}
    assert host_ports("postgres-target") == {ports.target: 5432}
    assert host_ports("kafka") == {ports.kafka: ports.kafka}
    assert host_ports("debezium") == {ports.connect: 8083}
    assert host_ports("kafka-ui") == {8080: 8080}
    assert host_ports("spark-master") == {7077: 7077, 8081: 8081}
    assert host_ports("spark-worker") == {8082: 8082}
    assert host_ports("replicator") == {8090: 8090}
    every = [port for name in SERVICES for port in host_ports(name)]
    assert len(every) == len(set(every))


@pytest.mark.parametrize("name", DATABASES)
def test_databases_equal_the_embedded_ones(name: str) -> None:
    database, service = DATABASES[name], SERVICES[f"postgres-{name}"]
    assert environment(f"postgres-{name}") == {
        "POSTGRES_USER": SUPERUSER,
        "POSTGRES_PASSWORD": SUPERUSER_PASSWORD,
        "POSTGRES_DB": database.database,
    }
    assert f"./init-scripts/{database.init_script}:/docker-entrypoint-initdb.d/init.sql:ro" in service["volumes"]
    check = service["healthcheck"]["test"][1]
    assert f"-U {database.user} -d {database.database}" in check
    script = (PROJECT / "init-scripts" / database.init_script).read_text()
    assert re.search(rf"CREATE ROLE {database.user} LOGIN (REPLICATION )?PASSWORD '{database.password}'", script)
    assert f"ALTER DATABASE {database.database} OWNER TO {database.user}" in script


def test_service_file_of_psql_has_the_same_databases() -> None:
    file = ConfigParser()
    file.read(PROJECT / "config" / "pg_service.conf")
    ports = StackPorts().mapping()
    assert {name: dict(file[name]) for name in file.sections()} == {
        name: {"host": HOST, "port": str(ports[name]), "dbname": one.database, "user": one.user, "password": one.password}
        for name, one in DATABASES.items()
    }


def test_source_has_logical_replication() -> None:
    command = SERVICES["postgres-source"]["command"]
    settings = dict(word.split("=") for word in command if "=" in word)
    assert settings == {
        "wal_level": DATABASES["source"].wal_level,
        "max_wal_senders": SETTINGS["max_wal_senders"],
        "max_replication_slots": SETTINGS["max_replication_slots"],
    }


def as_property(variable: str, prefix: str) -> str:
    return variable.removeprefix(prefix).lower().replace("_", ".")


def test_broker_has_the_embedded_settings() -> None:
    given = {as_property(k, "KAFKA_"): v for k, v in environment("kafka").items() if k.startswith("KAFKA_")}
    assert {name: given.get(name) for name in BROKER} == dict(BROKER)
    advertised = dict(listener.split("://") for listener in given["advertised.listeners"].split(","))
    assert advertised == {"INSIDE": "kafka:9092", "HOST": f"127.0.0.1:{StackPorts().kafka}"}
    assert len(environment("kafka")["CLUSTER_ID"]) == 22


BARE_NAMES = {"bootstrap.servers", "group.id", "key.converter", "value.converter"} | {
    f"{kind}.storage.topic" for kind in ("offset", "config", "status")
}
"""What the Debezium image reads from variables without the CONNECT_ prefix."""


def test_worker_has_the_embedded_settings() -> None:
    variables = environment("debezium")
    given = {as_property(k, "CONNECT_"): v for k, v in variables.items() if k.startswith("CONNECT_")}
    given |= {as_property(k, ""): v for k, v in variables.items() if as_property(k, "") in BARE_NAMES}
    assert {name: given.get(name) for name in WORKER} == dict(WORKER)
    assert given["bootstrap.servers"] == "kafka:9092"


def test_connector_file_has_the_same_database_in_both() -> None:
    inside = {k: v for k, v in environment("debezium").items() if k.startswith("SOURCE_")}
    local = dict(ConnectService(StackHome.in_project(PROJECT)).environment())
    here = {"SOURCE_DB_HOST", "SOURCE_DB_PORT"}
    assert {k: v for k, v in inside.items() if k not in here} == {k: v for k, v in local.items() if k not in here}
    assert (inside["SOURCE_DB_HOST"], inside["SOURCE_DB_PORT"]) == ("postgres-source", "5432")
    assert (local["SOURCE_DB_HOST"], local["SOURCE_DB_PORT"]) == ("127.0.0.1", str(StackPorts().source))


def test_connector_is_that_of_the_contract() -> None:
    name, config = read_connector(PROJECT / "connectors" / "postgres-source-connector.json")
    used = set(re.findall(r"\$\{env:(\w+)\}", " ".join(config.values())))
    by_init = {"SOURCE_PASSWORD"}
    assert used | by_init == set(ConnectService(StackHome.in_project(PROJECT)).environment())
    expected = {
        "topic.prefix": "cdc",
        "publication.name": "cdc_publication",
        "snapshot.mode": "initial",
        "poll.interval.ms": "50",
        "decimal.handling.mode": "precise",
        "provide.transaction.metadata": "true",
        "tombstones.on.delete": "true",
        "skipped.operations": "none",
        "key.converter.schemas.enable": "true",
        "value.converter.schemas.enable": "true",
        "value.converter.replace.null.with.default": "false",
    }
    assert name == "postgres-source-connector"
    assert {key: config.get(key) for key in expected} == expected
    assert "CREATE PUBLICATION cdc_publication" in (PROJECT / "init-scripts" / "source-init.sql").read_text()


def read_secret_files() -> dict[str, Path]:
    """Name of a secret -> the file in this project."""
    files = {name: re.fullmatch(r"\$\{\w+:-\./(.+)\}", secret["file"]) for name, secret in COMPOSE["secrets"].items()}
    return {name: PROJECT / found[1] for name, found in files.items() if found}


def test_daemon_connects_to_the_services_of_the_file() -> None:
    """The shipped config in the container: every address is that of a service."""
    service, files = SERVICES["replicator"], read_secret_files()
    assert set(service["secrets"]) == set(COMPOSE["secrets"]) == set(files)
    environ = environment("replicator")
    for name, value in environ.items():
        if name.endswith("_FILE"):
            environ[name] = str(files[value.removeprefix("/run/secrets/")])
    loaded = load_settings(PROJECT / "config" / "replicator.yaml", environ["REPLICATOR_ENV"], environ=environ)
    settings = loaded.settings
    assert loaded.warnings == ()
    addresses = [
        settings.sources["shop"].bootstrap_servers,
        settings.sources["shop"].connect.url,
        settings.sources["shop"].database.dsn.get_secret_value(),
        settings.sinks["datalake"].dsn.get_secret_value(),
        settings.sinks["raw_pg"].dsn.get_secret_value(),
        settings.sinks["target"].dsn.get_secret_value(),
    ]
    assert [re.search(r"([a-z-]+:\d+)(/|$)", address)[1] for address in addresses] == [
        "kafka:9092", "debezium:8083", "postgres-source:5432", "postgres-datalake:5432", "postgres-datalake:5432",
        "postgres-target:5432",
    ]  # fmt: skip
    for name in DATABASES:
        database = DATABASES[name]
        assert f"//{database.user}:{database.password}@" in files[f"{name}_dsn"].read_text()
    assert settings.http.address == "0.0.0.0:8090" and settings.http.token is not None


def test_daemon_is_the_image_of_the_project() -> None:
    service, stages = SERVICES["replicator"], read_stages(PROJECT / "Dockerfile")
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert service["image"] == f"replicator:{version}"
    written = dict(stages[service["build"]["target"]])
    assert {volume.split(":")[1] for volume in service["volumes"]} <= set(json.loads(written["VOLUME"]))
    assert service["healthcheck"]["test"][1:] == json.loads(written["HEALTHCHECK"].partition("CMD ")[2])


def test_scripts_do_not_start_the_daemon() -> None:
    assert "daemon" not in re.findall(r"--profile (\w+)", (PROJECT / "scripts" / "start.sh").read_text())
    stopped = (PROJECT / "scripts" / "stop.sh").read_text()
    assert set(re.findall(r"--profile (\w+)", stopped)) == set(PROFILES)
