"""References in docstrings and comments, such as `domain.change.RAW`: the module exists, and has the name."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
REFERENCE = re.compile(r"`([a-z_]+(?:\.[A-Za-z_]+)+)(?:\(\))?`")
PACKAGES = frozenset(
    {"adapters", "application", "apply", "decoders", "domain", "ports", "settings", "sinks", "sql", "testing", "wiring"}
)
OTHERS = frozenset(
    {"com", "deltalake", "io", "java", "msgspec", "org", "pathlib", "payload"}
    | {"psycopg", "pyarrow", "pyspark", "scala", "threading"}
)
"""First words of classes of other programs."""


@cache
def list_modules() -> dict[str, set[str]]:
    """The names that each module defines at its top, and `Class.member`."""
    found = {}
    for package in ("replicator", "adapters", "tests"):
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found[name] = set(list_names(ast.parse(path.read_text())))
    return found


def list_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield node.name
            for member in ast.walk(node):
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{member.name}"
                elif isinstance(member, ast.Name | ast.Attribute) and isinstance(member.ctx, ast.Store):
                    yield f"{node.name}.{member.id if isinstance(member, ast.Name) else member.attr}"
        else:
            yield from (
                alias.asname or alias.name for n in ast.walk(node) if isinstance(n, ast.ImportFrom) for alias in n.names
            )
            yield from (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


@cache
def index_ends() -> dict[str, list[str]]:
    """The modules by each end of their names: `change` and `domain.change` are ends of `replicator.domain.change`."""
    found = defaultdict(list)
    for name in list_modules():
        parts = name.split(".")
        for start in range(len(parts)):
            found[".".join(parts[start:])].append(name)
    return found


def list_texts(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and '"""' in token.string):
            yield token.start[0], token.string


def is_checked(reference: str) -> bool:
    """True for a reference that starts with a package, or ends with a class or constant. Others may be variables or
    settings."""
    first, *_, last = reference.split(".")
    return first in PACKAGES or (first not in OTHERS and last[0].isupper())


def is_known(reference: str) -> bool:
    """True if a module ends like the reference, or like its first words and defines the rest."""
    parts = reference.split(".")
    return any(
        count == len(parts) or ".".join(parts[count:]) in list_modules()[module]
        for count in range(len(parts), 0, -1)
        for module in index_ends().get(".".join(parts[:count]), ())
    )


def test_references_in_docstrings_exist() -> None:
    wrong = []
    for package in ("replicator", "adapters"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for line, text in list_texts(path.read_text()):
                unknown = [r for r in REFERENCE.findall(text) if is_checked(r) and not is_known(r)]
                wrong += [f"{path.relative_to(ROOT)}:{line}: {reference}" for reference in unknown]
    assert not wrong


def test_wrong_reference_is_found() -> None:
    assert is_known("domain.change.RAW") and is_known("ports.sink.SinkFeatures.select")
    assert not is_known("domain.change.NONE") and not is_known("ports.sinks.Sink")
