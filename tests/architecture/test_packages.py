"""What is imported where Spark is not needed is among the packages that are installed without it."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN = {"replicator", "adapters"}


def list_imports(path):
    """The packages that a module imports when it is imported itself."""
    for node in ast.parse(path.read_text()).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
        yield from (name.partition(".")[0] for name in names)


def normalize_name(name):
    """As PEP 503 has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


TAKEN_ALONG = {"pydantic-core": "pydantic", "h11": "uvicorn"}
"""Packages that others bring, and that are imported beside them."""
OF_TESTS = {"pytest", "hypothesis"}
"""What the published contracts need, as whoever runs them has it."""


def test_the_local_engine_needs_only_what_is_installed_with_it():
    """The lock has more: what tests need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = [*project["dependencies"], *project["optional-dependencies"]["stack"]]
    declared = {normalize_name(re.match(r"[A-Za-z0-9_.-]+", text)[0]) for text in said}
    assert set(TAKEN_ALONG.values()) <= declared
    homes = packages_distributions()
    files = [p for own in OWN for p in (ROOT / own).rglob("*.py") if "spark" not in str(p.relative_to(ROOT))]
    assert len(files) > 500
    missing = {}
    for path in files:
        known = declared | TAKEN_ALONG.keys() | (OF_TESTS if "testing" in path.parts else set())
        for name in set(list_imports(path)) - OWN - set(sys.stdlib_module_names):
            if not set(map(normalize_name, homes.get(name, [name]))) & known:
                missing.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert not missing


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-spark.lock"])
def test_the_build_backend_is_the_one_of_the_locks(lock):
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    locked = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+) \\\n    --hash=sha256:", (ROOT / lock).read_text(), re.M))
    assert len(locked) > 50
    assert requires == [f"hatchling=={locked['hatchling']}"]
    assert "editables" in locked


def test_the_project_is_installed_by_the_backend_of_the_lock():
    """Wherever pip builds it: isolation would fetch the backend without a hash."""
    files = [*(ROOT / "scripts").rglob("*.sh"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / ".ci" / "run"]
    text = "\n".join(p.read_text().replace("\\\n", " ") for p in files)
    commands = re.findall(r"pip install\b[^\n`|&]*", text)
    builds = [each for each in commands if re.search(r"--editable|['\" ]\.(\[|['\" ]|$)", each)]
    assert len(builds) >= 2
    assert [each for each in builds if "--no-build-isolation" not in each] == []
