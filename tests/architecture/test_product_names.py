"""The core names no product: it treats adapters of this package like third-party ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from paths import PROJECT

CORE = PROJECT / "replicator"
PRODUCT = re.compile(
    r"(delta|delta_rs|deltalake|iceberg|postgres|postgresql|psycopg|mariadb|mysql|sqlalchemy|duckdb|kafka|prometheus)(_\w+)?"
)
EXCEPTIONS = {
    "application/operations/support_bundle.py": "A support bundle lists the versions of the drivers.",
    "domain/transactions.py": "Debezium writes the name of its connector into each record.",
    "ports/adapter_options.py": "The kind of a source database; transports that read each format of records.",
    "ports/options.py": "Schemes of URLs in the config.",
    "settings/starting_config.py": "`init` translates the configurations of Kafka Connect, and names the adapters for them.",
    "settings/queries.py": "A dialect of the SQL parser.",
    "settings/source_checks.py": "Rules between keys of built-in transports and formats, with the lines of both.",
    "wiring/container.py": "The telemetry that the daemon always has.",
    "wiring/diagnosis.py": "The checks of source databases, by the scheme in `database.dsn`.",
    "wiring/starting_project.py": "`init` writes a config, so it names the adapters for the URLs that it was given.",
}
"""Modules that may name products, and why. A third-party sink or store needs none of them."""


def list_names(file: Path) -> Iterator[str]:
    """The products that a module names in quotes."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and PRODUCT.fullmatch(node.value):
            yield f"{node.lineno}: {node.value!r}"


def test_only_exceptions_name_products() -> None:
    files = {str(file.relative_to(CORE)): file for file in CORE.rglob("*.py") if "testing" not in file.parts}
    found = {name: names for name, file in files.items() if (names := list(list_names(file)))}
    assert {name: names for name, names in found.items() if name not in EXCEPTIONS} == {}
    assert EXCEPTIONS.keys() <= found.keys(), "an exception is not needed any more: remove it"
