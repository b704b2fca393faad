"""How long functions and files may be: deep files are welcome, long functions are not."""

import ast
from pathlib import Path
from statistics import quantiles

ROOT = Path(__file__).parents[2]
FILES = [p for package in ("replicator", "adapters") for p in (ROOT / package).rglob("*.py")]
FREE = {"model.py"}


def functions(path):
    """Name and length of every function, its docstring not counted."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", length(node)


def length(node):
    """Lines from the definition to the end, without the docstring."""
    whole = node.end_lineno - node.lineno + 1
    if ast.get_docstring(node) is None:
        return whole
    return whole - (node.body[0].end_lineno - node.body[0].lineno + 1)


def test_functions_are_short():
    lengths = {name: lines for path in FILES for name, lines in functions(path)}
    assert not {name: lines for name, lines in lengths.items() if lines > 60}
    assert quantiles(lengths.values(), n=20)[-1] <= 30


def test_files_are_short():
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in FILES if p.name not in FREE}
    assert not {name: lines for name, lines in lengths.items() if lines > 700}
