"""Each imported module belongs to an installed package, and modules of an extra are reported with its name."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from replicator.extras import find_extra, read_extras

ROOT = Path(__file__).parents[2]
OWN = {"replicator", "adapters"}


def list_imports(nodes):
    """The packages that statements import. The statements of a module's body run at its import."""
    for node in nodes:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
        yield from (name.partition(".")[0] for name in names)


def normalize_name(name):
    """The normalised name by PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


INDIRECT = {"pydantic-core": "pydantic", "h11": "uvicorn", "py4j": "pyspark", "numpy": "pandas"}
"""Packages that are installed with others and imported too."""
OF_TESTS = {"pytest", "hypothesis"}
"""Packages that the published contracts need; projects that run them have these."""


def list_declared(*extras):
    """The packages that are installed with these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *(text for extra in extras for text in project["optional-dependencies"][extra]),
    ]
    return {normalize_name(re.match(r"[A-Za-z0-9_.-]+", text)[0]) for text in requirements}


def find_undeclared(declared, files, read_nodes):
    """Imported packages that are not declared, with their files."""
    homes = packages_distributions()
    known = declared | {name for name, user in INDIRECT.items() if user in declared}
    missing = {}
    for path in files:
        ours = OWN | set(sys.stdlib_module_names)
        for name in set(list_imports(read_nodes(ast.parse(path.read_text())))) - ours:
            packages = set(map(normalize_name, homes.get(name, [name])))
            if not packages & (known | (OF_TESTS if "testing" in path.parts else set())):
                missing.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return missing


def test_local_engine_needs_only_its_own_packages():
    """The lock has more packages, for tests."""
    files = [p for own in OWN for p in (ROOT / own).rglob("*.py") if "spark" not in str(p.relative_to(ROOT))]
    assert len(files) > 300
    assert not find_undeclared(list_declared("kafka", "avro", "mariadb", "stack"), files, lambda module: module.body)


def test_module_of_an_extra_is_reported_with_that_extra():
    """In any module that imports it: the package name of the module decides."""
    files = [p for own in OWN for p in (ROOT / own).rglob("*.py")]
    optional = find_undeclared(list_declared(), files, ast.walk)
    assert {"confluent_kafka", "fastavro", "pymysql", "pyspark", "jgo", "psutil"} <= optional.keys()
    assert {name for name in optional if find_extra(name) is None} <= INDIRECT.keys()


@pytest.mark.parametrize(
    ("module", "user", "extra"),
    [
        ("confluent_kafka", "the adapter 'kafka' (adapters.sources.kafka:KafkaSource)", "kafka"),
        ("confluent_kafka.admin", "the adapter 'embedded' (adapters.stack:EmbeddedStack)", "stack"),
        ("fastavro", "the adapter 'debezium_avro' (adapters.decoders.debezium_avro:DebeziumAvroDecoder)", "avro"),
        ("fastavro", "the adapter 'dts_avro' (adapters.decoders.dts_avro:DtsAvroDecoder)", "dts"),
        ("fastavro", "`replicator run`", "avro"),
        ("platformdirs", "the adapter 'demo' (adapters.stack.demo:DemoSystem)", "stack"),
        ("platformdirs", "the adapter 'spark' (adapters.observability.checks.spark:SparkCheck)", "spark"),
        ("pymysql", "`replicator backfill`", "mariadb"),
        ("pyspark.sql", "the adapter 'spark' (adapters.engines.spark:SparkEngine)", "spark"),
        ("duckdb", "`replicator run`", None),
    ],
)
def test_extra_that_the_user_names_is_reported(module, user, extra):
    assert find_extra(module, user) == extra


def test_extra_all_has_the_packages_of_every_extra():
    extras = read_extras()
    assert extras["all"] == frozenset().union(*extras.values()) and len(extras) == 8


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-spark.lock"])
def test_build_backend_equals_the_one_in_the_locks(lock):
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    locked = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+) \\\n    --hash=sha256:", (ROOT / lock).read_text(), re.M))
    assert len(locked) > 50
    assert requires == [f"hatchling=={locked['hatchling']}"]
    assert "editables" in locked


def test_project_is_installed_with_the_locked_backend():
    """In every documented build: isolation would download the backend without a hash."""
    files = [*(ROOT / "scripts").rglob("*.sh"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / ".ci" / "run"]
    text = "\n".join(p.read_text().replace("\\\n", " ") for p in files)
    commands = re.findall(r"pip install\b[^\n`|&]*", text)
    builds = [each for each in commands if re.search(r"--editable|['\" ]\.(\[|['\" ]|$)", each)]
    assert len(builds) >= 2
    assert [each for each in builds if "--no-build-isolation" not in each] == []
