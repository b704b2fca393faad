"""The size and shape of the code base, as a table: current value, limit and aim.

A limit is lowered by the change that makes it possible, and raised only with the reason in the commit."""

import ast
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
SMALL_MODULE = 60


class Module(NamedTuple):
    """A file of the product."""

    name: str
    lines: int
    tree: ast.Module


@cache
def read_modules() -> list[Module]:
    """Called in tests and not at collection, which every run pays for."""
    found = []
    for path in (p for package in ("replicator", "adapters") for p in (ROOT / package).rglob("*.py")):
        text = path.read_text()
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found.append(Module(name, len(text.splitlines()), ast.parse(text)))
    return found


def list_functions() -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    return [(m.name, n) for m in read_modules() for n in ast.walk(m.tree) if isinstance(n, FUNCTIONS)]


def count_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From the definition to the end, without the docstring."""
    docs = node.body[0] if ast.get_docstring(node) is not None else None
    return node.end_lineno - node.lineno + 1 - (docs.end_lineno - docs.lineno + 1 if docs else 0)


def count_single_callers() -> float:
    """Percent of the private functions of modules and classes with a single use."""
    once = private = 0
    for module in read_modules():
        uses = Counter(
            n.attr if isinstance(n, ast.Attribute) else n.id
            for n in ast.walk(module.tree)
            if isinstance(n, ast.Attribute | ast.Name)
        )
        names = [
            n.name
            for n in ast.walk(module.tree)
            if isinstance(n, FUNCTIONS) and n.name.startswith("_") and not n.name.startswith("__")
        ]
        private += len(names)
        once += sum(uses[name] == 1 for name in names)
    return 100 * once / private


def find_importers() -> dict[str, set[str]]:
    """The modules that import each module, relative imports resolved."""
    names, found = {m.name for m in read_modules()}, defaultdict(set)
    packages = {m.name for m in read_modules() if (ROOT / Path(*m.name.split(".")) / "__init__.py").exists()}
    for module in read_modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom):
                up = module.name.split(".") if module.name in packages else module.name.split(".")[:-1]
                base = (
                    [*up[: len(up) - node.level + 1], *(node.module or "").split(".")]
                    if node.level
                    else (node.module or "").split(".")
                )
                base = ".".join(filter(None, base))
                for alias in node.names:
                    target = f"{base}.{alias.name}" if f"{base}.{alias.name}" in names else base
                    found[target].add(module.name)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.name].add(module.name)
    return found


def count_small_modules() -> int:
    """Modules of under 60 lines with one importer. Modules of entry points do not count: they are loaded by name, some
    without the packages of their importer."""
    importers, loaded = find_importers(), list_entry_points()
    return sum(m.lines < SMALL_MODULE and len(importers[m.name]) == 1 and m.name not in loaded for m in read_modules())


def list_entry_points() -> set[str]:
    """The modules of entry points."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    return {target.partition(":")[0] for group in groups.values() for target in group.values()}


def list_protocols() -> list[ast.ClassDef]:
    nodes = (n for m in read_modules() if m.name.startswith("replicator.ports.") for n in m.tree.body)
    return [n for n in nodes if isinstance(n, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in n.bases)]


class Row(NamedTuple):
    """A line of the table."""

    what: str
    measure: Callable[[], float]
    limit: float
    aim: float


ROWS = [
    Row("product lines", lambda: sum(m.lines for m in read_modules()), 106_850, 78_000),
    Row("files", lambda: len(read_modules()), 450, 450),
    Row("longest function, lines", lambda: max(count_lines(n) for _, n in list_functions()), 60, 60),
    Row(
        "function, 95th percentile, lines",
        lambda: quantiles([count_lines(n) for _, n in list_functions()], n=20)[-1],
        30,
        30,
    ),
    Row(
        "longest file, lines (the model aside)",
        lambda: max(m.lines for m in read_modules() if m.name != "replicator.testing.model"),
        700,
        700,
    ),
    Row("private functions with one caller, %", count_single_callers, 45, 45),
    Row("modules with one importer and under 60 lines", count_small_modules, 0, 0),
    Row("port protocols", lambda: len(list_protocols()), 24, 25),
    Row("methods of ports", lambda: sum(isinstance(n, FUNCTIONS) for p in list_protocols() for n in p.body), 114, 90),
]


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> dict[str, float]:
    measured = {row.what: row.measure() for row in ROWS}
    lines = [f"{row.what:46} {measured[row.what]:>9,.0f} {row.limit:>9,} {row.aim:>9,}" for row in ROWS]
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n" + "\n".join([f"{'':46} {'now':>9} {'limit':>9} {'aim':>9}", *lines]))
    return measured


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_code_base_stays_within_its_limits(row: Row, table: dict[str, float]) -> None:
    assert table[row.what] <= row.limit
