"""Words that say nothing, and words that belong to one machine only."""

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = [p for package in ("replicator", "adapters") for p in (ROOT / package).rglob("*.py")]
EMPTY_NAMES = re.compile(r"(^|_)(manager|helpers?|utils?|process|handle_data)($|_)|Manager|Helper|Util(s|ity)")
ALLOWED = {"adapters/stack/processes.py"}
"""Operating-system processes are what this file is about."""
MACHINE = re.compile(r"/(work|root)/[\w.]|localhost:\d+/simple|artifactory|nexus|pypi\.(?!org)")
TALK = re.compile(r"\b(claude|chatgpt|copilot|codex|llm|ai assistant|this session|issue #?\d+)\b", re.IGNORECASE)
OWN = "tests/architecture/test_text.py"


def tracked():
    """Every committed text file, with its content."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and name != OWN and not name.startswith("tests/golden"):
            try:
                yield name, path.read_text()
            except UnicodeDecodeError:
                continue


def names_in(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def test_names_say_what_things_are():
    bad = {}
    for path in CODE:
        name = str(path.relative_to(ROOT))
        if name not in ALLOWED:
            found = [n for n in (path.stem, *names_in(path)) if EMPTY_NAMES.search(n)]
            bad |= {name: found} if found else {}
    assert not bad


def test_no_file_knows_a_machine():
    bad = {name: found.group() for name, text in tracked() if (found := MACHINE.search(text))}
    assert not bad


def test_files_speak_of_the_project_only():
    bad = {name: found.group() for name, text in tracked() if (found := TALK.search(text))}
    assert not bad
