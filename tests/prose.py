"""
Checks the prose of pages, docstrings and messages against a few rules: `python -m tests.prose [PATH...]`.

A finding is a line `path:line: rule: the words`. Rules: a sentence has at most 25 words, begins with its subject and not
with a bare relative clause, has at most one semicolon, holds no retired word, and no count that cannot be a plural.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST = 25
CELL = 10
"""A list of types or names, such as `int16; int32; int64`, has at most this number of words."""
HEADLESS = re.compile(
    r"(?:What|Who|Whom|Whose|Whether|Where|Wherever|Of|Those|That of|The ones?|One that|Nor|Such as|As is|Which)\b"
    r"(?![^.]*\?)"
)
RETIRED = re.compile(
    r"\b(?:anew|beside|rosters?|veil(?:s|ed)?|laid|moments?|borders?|standings?|shel(?:f|ves)|tell(?:s|ing)?|told|untold"
    r"|so many|unsent|nobody|somebody|whoever|whatever|thereof|likewise"
    r"|hitherto|(?<!dead )(?<!dead-)(?<!uppercase )(?<!lowercase )(?<!capital )letters(?!,? (?:and )?digits))\b",
    re.IGNORECASE,
)
COUNT = re.compile(r"\b1 (?:records|rows|changes|files|lanes|tables|columns|times|seconds|versions|lines|keys)\b")
FENCE = re.compile(r"^\s*(?:```|~~~)")
SENTENCE_END = re.compile(r"(?<=[.!?:])[\"')\]*_]*\s+(?=[\"'(\[*_`]*[A-Z0-9`{])|\n\s*\n")
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|vs|cf|approx|no|St)\.$")
IDENTIFIER = re.compile(r"^[\w./:@%+*={}\[\]-]*[/_={}\[\]@][\w./:@%+*={}\[\]-]*$")
MESSAGE_WORDS = 4
"""Strings of the code with fewer words are names, keys or parts of SQL."""
PACKAGES = ("replicator", "adapters")


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def to_plain(text: str) -> str:
    """Markdown without its marks: code is one word, a link its text."""
    text = re.sub(r"<br ?/?>", "\n\n", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"``[^`]+``|`[^`]+`", "`code`", text)
    return re.sub(r"\*\*|__|<[^>]+>|\{[.#:][^}]*\}", "", text)


def split_sentences(text: str) -> Iterator[str]:
    waiting = ""
    for part in SENTENCE_END.split(text):
        waiting = f"{waiting} {part}".strip()
        if waiting and not ABBREVIATION.search(waiting):
            yield waiting
            waiting = ""
    if waiting:
        yield waiting


def count_words(sentence: str) -> int:
    return len([word for word in sentence.split() if re.search(r"\w", word)])


def check_text(text: str, path: str, line: int) -> Iterator[Finding]:
    """The findings of one paragraph, list item, table cell, docstring or message."""
    for sentence in split_sentences(to_plain(text)):
        shown = " ".join(sentence.split())
        if (words := count_words(sentence)) > LONGEST:
            yield Finding(path, line, f"{words} words", shown)
        if HEADLESS.match(sentence.lstrip("\"'(*_ ")):
            yield Finding(path, line, "begins without a subject", shown)
        if sentence.count(";") > 1 and words > CELL:
            yield Finding(path, line, "more than one semicolon", shown)
        if found := RETIRED.search(sentence):
            yield Finding(path, line, f"retired word '{found.group()}'", shown)
        if found := COUNT.search(sentence):
            yield Finding(path, line, f"plural '{found.group()}'", shown)


def read_blocks(page: str) -> Iterator[tuple[int, str]]:
    """Headings, paragraphs, list items and table cells of a page, with their lines."""
    block: list[str] = []
    began, code = 1, False

    def flush() -> Iterator[tuple[int, str]]:
        if block:
            yield began, " ".join(block)
            block.clear()

    for number, line in enumerate(page.splitlines(), 1):
        if FENCE.match(line):
            yield from flush()
            code = not code
            continue
        if code or line.lstrip().startswith(("<!--", "---", "|--", "| --", "$ ")):
            yield from flush()
            continue
        text = line.strip()
        if text.startswith("|"):
            yield from flush()
            cells = re.split(r"(?<!\\)\|", text.strip("|"))
            yield from ((number, cell.strip()) for cell in cells if cell.strip())
            continue
        if not text or re.match(r"(?:#+|[-*+]|\d+\.|>|!!!|\?\?\?|===)\s", text):
            yield from flush()
            text = re.sub(r"^(?:#+|[-*+]|\d+\.|>|(?:!!!|\?\?\?\+?|===)\s+\S+)\s*", "", text)
            began = number
        if text:
            if not block:
                began = number
            block.append(text)
    yield from flush()


def check_page(path: Path) -> Iterator[Finding]:
    for line, text in read_blocks(path.read_text()):
        yield from check_text(text, to_name(path), line)


def to_name(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def is_prose(text: str) -> bool:
    """Whether a string of the code is read by people: words with spaces between, and no SQL, pattern or template."""
    words = text.split()
    plain = [w for w in words if re.fullmatch(r"[\"'(]?[A-Za-z][a-z'-]*[.,:;!?)\"']*", w)]
    return len(words) >= MESSAGE_WORDS and len(plain) * 2 > len(words) and not re.match(r"\s*[A-Z]{3,}\b", text)


def read_strings(path: Path) -> Iterator[tuple[int, str, bool]]:
    """The docstrings and messages of a module, with their lines; true for a docstring."""
    tree = ast.parse(path.read_text())
    inner = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node) if part is not node
    }
    documentation = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if id(node) in inner:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value, id(node) in documentation
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
            yield node.lineno, "".join(map(str, parts)), False


def check_module(path: Path) -> Iterator[Finding]:
    for line, text, documentation in read_strings(path):
        if not (documentation or is_prose(text)):
            continue
        for began, block in read_blocks(text):
            yield from check_text(block, to_name(path), line + began - 1)


def check(path: Path) -> Iterator[Finding]:
    return check_page(path) if path.suffix == ".md" else check_module(path)


def list_files(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def main(arguments: list[str]) -> int:
    paths = [Path(argument).resolve() for argument in arguments] or list_files("*.md", *(f"{p}/*.py" for p in PACKAGES))
    files = [
        each
        for path in paths
        for each in (sorted(p for p in path.rglob("*") if p.suffix in {".md", ".py"}) if path.is_dir() else [path])
    ]
    findings = [finding for path in files for finding in check(path)]
    print(*findings, sep="\n")
    print(f"{len(findings)} findings in {len(files)} files", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
