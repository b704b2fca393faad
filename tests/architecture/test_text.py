"""Words without a meaning, and words that belong to one machine only."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = [p for package in ("replicator", "adapters") for p in (ROOT / package).rglob("*.py")]
EMPTY_NAMES = re.compile(r"(^|_)(manager|helpers?|utils?|handle_data)($|_)|^_?process($|_data)|Manager|Helper|Util(s|ity)")
MACHINE = re.compile(r"/(work|root)/[\w.]|localhost:\d+/simple|artifactory|nexus|pypi\.(?!org)")
TALK = re.compile(r"\b(claude|chatgpt|copilot|codex|llm|ai assistant|this session|issue #?\d+)\b", re.IGNORECASE)
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
SHELLS = {"bash", "sh", "shell", "console", ""}
BUILT_IN = re.compile(r"^\s*(?:[$#] )?(?:echo|printf|export|read)\b[^|;&]*(?:[|;&]|$)")
"""Commands inside the shell: no process has their arguments."""
PASSWORD = re.compile(
    r"\w://[^\s:/@]*:[^\s@/]+@|://[^\s@/]*\$\{?\w*(?:PASSWORD|TOKEN|SECRET)|--(?:password|token|secret)[ =]?\S"
    r"|\b(?:psql|pg_\w+|mysql\w*|mariadb[\w-]*|curl|kcat|replicator)\b.*\$\{?\w*(?:DSN|PASSWORD|TOKEN|SECRET)\b"
    r"|\b(?:mysql|mariadb)\w*\b.* -p\S|\bcurl\b.* (?:-u|--user)[ =]?\S+:\S|\bcurl\b.*\bBearer ",
)
COMMAND = re.compile(
    r"^\s*(?:[$#] )?(?:\w+=\S+ )*(?:[\w./-]*/)?(?:psql|pg_\w+|mysql\w*|mariadb[\w-]*|curl|kcat|docker|python|replicator"
    r"|\w+\.sh)\b"
)
OWN = "tests/architecture/test_text.py"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
NAMED = re.compile(r"`([\w./-]+)`")
WORD = re.compile(r"\w+")
COUNT = re.compile(r"\blen\(|\bsum\(|\b(?:\w*count|total|rows|records|rejected|applied|size)\b")
COUNTED = re.compile(
    r"(?<!than )(?<!most )\{\} (?:[a-z]+ )?(?:records|rows|changes|files|lanes|keys|snapshots|letters)\b(?!/)"
)


def list_tracked_files():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [f"/{name}" for name in filter(None, listed.stdout.split("\0"))]


def read_tracked_files():
    """Every committed text file, with its content."""
    for name in (file[1:] for file in list_tracked_files()):
        path = ROOT / name
        if path.is_file() and name != OWN and not name.startswith("tests/golden"):
            try:
                yield name, path.read_text()
            except UnicodeDecodeError:
                continue


def list_defined_names(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def test_no_name_has_an_empty_word():
    bad = {}
    for path in CODE:
        name = str(path.relative_to(ROOT))
        found = [n for n in (path.stem, *list_defined_names(path)) if EMPTY_NAMES.search(n)]
        bad |= {name: found} if found else {}
    assert not bad


def test_no_file_contains_paths_of_a_machine():
    bad = {name: found.group() for name, text in read_tracked_files() if (found := MACHINE.search(text))}
    assert not bad


def test_files_mention_only_the_project():
    bad = {name: found.group() for name, text in read_tracked_files() if (found := TALK.search(text))}
    assert not bad


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_paths_of_the_page_exist(page):
    known = list_tracked_files()
    named = {name for name in NAMED.findall((ROOT / page).read_text()) if "/" in name or name.endswith(".py")}
    assert {n for n in named if not any(f.endswith(f"/{n}") or f"/{n}/" in f for f in known)} == set()


def test_names_in_the_contributing_table_exist():
    """Each name is in a file, or in a folder, of its row or of a row above it in the same table."""
    known, rows = list_tracked_files(), CONTRIBUTING.read_text().split("## Find the place")[1].split("\n## ")[0]
    words: set[str] = set()
    for row in rows.splitlines():
        if not row.startswith("| "):
            words = set()
            continue
        named = NAMED.findall(row)
        paths = [f for n in named if "/" in n for f in known if f"/{n}" == f or f.startswith(f"/{n}/")]
        words |= {w for path in paths if path.endswith(".py") for w in WORD.findall((ROOT / path[1:]).read_text())}
        assert {n for n in named if WORD.fullmatch(n)} <= words | {"doctor", "sources"}, row


def find_counts_without_plurals(source):
    """F-strings with a number before a plural noun; a limit may have one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = [(p.value, "") if isinstance(p, ast.Constant) else ("{}", ast.unparse(p.value)) for p in node.values]
            counts = any(COUNT.search(value) for _, value in parts)
            if counts and COUNTED.search("".join(text for text, _ in parts)):
                yield ast.unparse(node)


def test_count_has_the_right_noun():
    """`1 record`, `2 records`: `format_count` writes both."""
    found = {
        str(p.relative_to(ROOT)): list(find_counts_without_plurals(p.read_text())) for p in CODE if "testing" not in p.parts
    }
    assert {name: texts for name, texts in found.items() if texts} == {}
    assert list(find_counts_without_plurals('f"{len(found)} rejected records"')) == ["f'{len(found)} rejected records'"]


def find_commands_with_passwords(text):
    """Lines of shell blocks with a password among the arguments of a program, where every user of the machine sees it."""
    blocks = [block for _, language, block in BLOCK.findall(text) if language in SHELLS]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    commands = [BUILT_IN.sub("", line) for line in lines]
    return [each for each in commands if COMMAND.search(each) and PASSWORD.search(each)]


def test_no_documented_command_has_a_password_as_argument():
    pages = {name: text for name, text in read_tracked_files() if name.endswith(".md")}
    assert sum(len(BLOCK.findall(text)) for text in pages.values()) > 100
    assert {name: found for name, text in pages.items() if (found := find_commands_with_passwords(text))} == {}


@pytest.mark.parametrize(
    "command",
    [
        "psql postgresql://me:secret@127.0.0.1:5433/shop -c 'SELECT 1'",
        'psql "$SOURCE_DSN"',
        "$ mysqldump -h db -psecret shop",
        "mysql --password=secret shop",
        "curl -u me:secret http://connect:8083/connectors",
        'curl -H "Authorization: Bearer $EVENTS_TOKEN" http://127.0.0.1:8091/events',
        'echo | curl -H "X-Token: $EVENTS_TOKEN" http://127.0.0.1:8091/events',
        "PGHOST=db .venv/bin/replicator run --set 'sinks.target.dsn=postgresql://${USER}:${PASSWORD}@db/shop'",
    ],
)
def test_command_with_a_password_is_found(command):
    assert find_commands_with_passwords(f"Do this:\n\n```bash\n{command}\n```\n") != []


@pytest.mark.parametrize(
    "command",
    ["psql service=source -p 5433", "printf 'Bearer %s' \"$EVENTS_TOKEN\" | curl -H @- http://127.0.0.1:8091/events"],
)
def test_command_without_a_password_is_accepted(command):
    assert find_commands_with_passwords(f"Do this:\n\n```bash\n{command}\n```\n") == []
