"""No name contains a word that was replaced by a standard one (docs/reference/glossary.md)."""

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("replicator", "adapters", "tests", "benchmarks")
RETIRED_WORDS = """
aligner anew belonging belongings beside bordering borders bundling chunk chunks condemned crossing exchanging
fitting forgetting forgotten handed handover joining keeper laid laying ledger ledgers lookahead lookalikes
moments noting proofs publishing pulse rebuilding refreshing remade remaking replaying
roster seeding shaping shelf shortened shortening sparing spelling standings suspect told toolbox unfit unkept
unsent untold veil veiled veiling veils withheld withholding
"""
RETIRED = frozenset(RETIRED_WORDS.split())
FILLER_WORDS = """
asked came found given gone got had held here it kept known made met said some takes there told took what who
"""
FILLERS = frozenset(FILLER_WORDS.split())
"""Names of parameters and variables that do not say what they hold."""
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def list_names():
    """Every module, class and function, with its file."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        if name.startswith(tuple(f"{folder}/" for folder in FOLDERS)) and (ROOT / name).is_file():
            for part in Path(name).with_suffix("").parts:
                yield name, part
            for node in ast.walk(ast.parse((ROOT / name).read_text())):
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield name, node.name


def find_retired(name):
    return {word.lower() for word in WORD.findall(name)} & RETIRED


@pytest.mark.parametrize(
    ("name", "word"), [("_told", "told"), ("PartLedger", "ledger"), ("test_rows_are_laid_down", "laid"), ("TOLD_BY", "told")]
)
def test_retired_word_in_a_name_is_found(name, word):
    assert find_retired(name) == {word}


@pytest.mark.parametrize("name", ["unfitting", "toll", "relay", "test_keys_are_masked", "Keeperless"])
def test_retired_word_within_another_word_is_allowed(name):
    assert not find_retired(name)


def test_no_name_contains_a_retired_word():
    assert not {f"{file}: {name}" for file, name in list_names() if find_retired(name)}


def test_class_name_occurs_once():
    found = defaultdict(list)
    for path in (p for package in ("replicator", "adapters") for p in (ROOT / package).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path.relative_to(ROOT).as_posix())
    twice = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert not twice


def list_variables(node: ast.AST, function: str = "") -> Iterator[tuple[str, str]]:
    """Parameters and variables below `node`, each with its function. Published fields of classes have none."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.arg):
            yield function, child.arg
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield function, child.id
        elif isinstance(child, ast.ExceptHandler) and child.name:
            yield function, child.name
        yield from list_variables(child, child.name if isinstance(child, ast.FunctionDef) else function)


def test_variables_have_no_filler_names() -> None:
    wrong = []
    for path in (p for package in ("replicator", "adapters") for p in (ROOT / package).rglob("*.py")):
        wrong += [
            f"{path.relative_to(ROOT)}: {function} {name}"
            for function, name in list_variables(ast.parse(path.read_text()))
            if function and name.strip("_") in FILLERS and (path.name, name) != ("events.py", "found")  # It is published.
        ]
    assert not wrong
