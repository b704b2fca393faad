"""YAML text to plain data, with the line of every value. Bounded, and blind to tags: nothing is ever constructed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Protocol

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from .findings import Origin, Path, PathProblem, describe_parent, describe_path, quote_name

MAX_BYTES = 512 * 1024
MAX_VALUES = 50_000
MAX_DEPTH = 32
BARE_REFERENCE = re.compile(r"[{,:]\s*\$\{")
TAG = "tag:yaml.org,2002:"
INDENT_HINT = ("the line is not indented like its neighbours", "indent it with as many spaces as the lines of its group")
SYNTAX = (
    ("quoted scalar", "quotes are opened and not closed", "close them, or write the text without quotes"),
    ("block collection: expected <block end>", *INDENT_HINT),
    ("block mapping: expected <block end>", *INDENT_HINT),
    ("flow sequence", "a '[' is not closed, or a comma is missing", "check that each '[' has its ']' and commas between"),
    ("flow mapping", "a '{' is not closed, or a comma is missing", "check that each '{' has its '}' and commas between"),
    (
        "mapping values are not allowed",
        "a ':' stands where no key can be",
        "indent the line as its neighbours, or quote text with ': '",
    ),
    ("could not find expected ':'", "a key has no ':' behind it", "write `key: value`, with a space behind the ':'"),
    ("\\t", "a tab", "indent with spaces"),
    ("cannot start any token", "a character that no value can begin with", "put the value in quotes"),
    (
        "expected the node content",
        "a value is missing, or '-' stands where none can be",
        "write each entry of a list in a line of its own",
    ),
    ("<block end>", *INDENT_HINT),
    ("undefined alias", "a '*' that names nothing", "put the value in quotes"),
)
"""The meaning of the parser's messages, and the remedy. The first match counts."""
PLAIN_TAGS = frozenset(f"{TAG}{name}" for name in ("str", "int", "float", "bool", "null"))
TEXT_TAGS = frozenset({f"{TAG}timestamp"})


class MakeOrigin(Protocol):
    """Gives the origin of a value from its 0-based line and its path."""

    def __call__(self, line: int, path: Path) -> Origin:
        """The origin to record."""


@dataclass
class Document:
    """Plain data (dict, list, str, int, float, bool, None), the origin of every value in it, and what was wrong.

    `origins[()]` is always present. A mapping's value has the line of its key. Broken parts are left out of `data`.
    """

    data: Any = None
    origins: dict[Path, Origin] = field(default_factory=dict)
    problems: list[PathProblem] = field(default_factory=list)


def read_document(path: FilePath) -> Document:
    """The document in the file `path`; a file that cannot be read, or is not YAML, is a problem in the result."""
    document = Document(origins={(): Origin(str(path))})
    try:
        if _would_wait(path):
            document.problems.append(PathProblem((), "unreadable", "cannot be read (it is a pipe, not a file)"))
            return document
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        step = "go to the project's folder, name the file with `-c` or REPLICATOR_CONFIG, or try `replicator init`"
        why = f"cannot be read ({error.strerror or type(error).__name__})"
        document.problems.append(PathProblem((), "unreadable", why, step))
        return document
    except UnicodeDecodeError:
        document.problems.append(PathProblem((), "yaml", "is not UTF-8 text"))
        return document
    return parse_document(text, lambda line, _: Origin(str(path), line + 1), document)


def _would_wait(path: FilePath) -> bool:
    """Opening a pipe by its name waits for its writer; those under /dev and /proc the caller's shell has opened already."""
    return path.is_fifo() and path.parts[1:2] not in (("dev",), ("proc",))


def parse_document(text: str, origin_of: MakeOrigin, document: Document | None = None) -> Document:
    """Parse one YAML 1.2 document. These are refused, each with its line:

    - tags, duplicate keys, keys that are not text, merge keys (`<<`)
    - more than MAX_BYTES of text, MAX_VALUES values (aliases expanded) or MAX_DEPTH levels
    """
    document = document or Document()
    document.origins[()] = origin_of(0, ())
    if len(text) > MAX_BYTES:
        document.problems.append(PathProblem((), "too_large", f"holds more than {MAX_BYTES} bytes"))
        return document
    try:
        yaml = YAML(typ="safe", pure=True)
        node = yaml.compose(text)
    except (YAMLError, RecursionError, ValueError) as error:
        return _add_syntax_problem(error, text, origin_of, document)
    _PlainReader(document, origin_of, yaml.constructor).read_root(node)
    return document


def _add_syntax_problem(error: Exception, text: str, origin_of: MakeOrigin, document: Document) -> Document:
    """Records a syntax error without the text it quotes, which may be a secret."""
    line, hint, sentence = 0, "", "is nested too deeply" if isinstance(error, RecursionError) else "is not valid YAML"
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line, mark.column) if mark else (0, 0)
        problem = f"{error.context or ''}: {error.problem or ''}"
        reason, hint = next((said for words, *said in SYNTAX if words in problem), ("a syntax error", ""))
        sentence += f" at column {column + 1}: {reason}"
    document.origins[()] = origin_of(line, ())
    document.problems.append(PathProblem((), "yaml", sentence, _describe_unquoted(text, line) or hint))
    return document


def _describe_unquoted(text: str, line: int) -> str:
    """The remedy for a reference whose braces YAML reads as its own."""
    lines = text.splitlines()[max(0, line - 1) : line + 1]
    return "put ${...} in quotes where it stands inside { }" if any(BARE_REFERENCE.search(one) for one in lines) else ""


class _DocumentTooLarge(Exception):
    """The document has more values or levels than the bounds allow."""


class _PlainReader:
    """Turns nodes into plain data; counts every visit, so that aliases cannot multiply beyond the bound."""

    def __init__(self, document: Document, origin_of: MakeOrigin, constructor: SafeConstructor) -> None:
        self.constructor = constructor
        self.document = document
        self.origin_of = origin_of
        self.visits = 0

    def read_root(self, node: Node | None) -> None:
        if node is None:
            return
        try:
            self.document.data = self.read_value(node, ())
        except _DocumentTooLarge:
            limit = f"more than {MAX_VALUES} values or {MAX_DEPTH} levels (aliases count each time they are used)"
            self.add_problem((), "too_large", f"holds {limit}")

    def add_problem(self, path: Path, code: str, message: str, suggestion: str = "") -> None:
        self.document.problems.append(PathProblem(path, code, message, suggestion))

    def read_value(self, node: Node, path: Path) -> Any:
        self.visits += 1
        if self.visits > MAX_VALUES or len(path) > MAX_DEPTH:
            raise _DocumentTooLarge
        self.document.origins.setdefault(path, self.origin_of(node.start_mark.line, path))
        if isinstance(node, MappingNode):
            return self.read_mapping(node, path)
        if isinstance(node, SequenceNode):
            return self.read_sequence(node, path)
        return self.read_scalar(node, path)

    def read_mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        self.refuse_tag(node, path, "map")
        for key_node, value_node in node.value:
            key = self.read_key(key_node, path)
            if key is None:
                continue
            below = (*path, key)
            origin = self.origin_of(key_node.start_mark.line, below)
            if key in result:
                first = self.document.origins[below]
                self.document.origins[below] = origin
                self.add_problem(
                    below, "duplicate_key", f"key {quote_name(key)} {describe_parent(path)} is there already, at {first}"
                )
                continue
            self.document.origins[below] = origin
            result[key] = self.read_value(value_node, below)
        return result

    def read_key(self, node: Node, path: Path) -> str | None:
        if node.tag == f"{TAG}merge":
            self.refuse_key(node, path, "merge keys (<<) are not supported", "write the keys out, or use 'defaults'")
            return None
        if not isinstance(node, ScalarNode) or node.tag != f"{TAG}str":
            self.refuse_key(node, path, f"a key {describe_parent(path)} is not text", "put it in quotes")
            return None
        return str(node.value)

    def refuse_key(self, node: Node, path: Path, message: str, suggestion: str) -> None:
        marker = (*path, f"\0{node.start_mark.line}:{node.start_mark.column}")
        self.document.origins[marker] = self.origin_of(node.start_mark.line, path)
        self.add_problem(marker, "key", message, suggestion)

    def read_sequence(self, node: SequenceNode, path: Path) -> list[Any]:
        self.refuse_tag(node, path, "seq")
        return [self.read_value(item, (*path, index)) for index, item in enumerate(node.value)]

    def read_scalar(self, node: Node, path: Path) -> Any:
        if node.tag in TEXT_TAGS:
            return str(node.value)
        if node.tag not in PLAIN_TAGS:
            self.add_problem(path, "tag", f"{describe_path(path)}: YAML tags are not allowed")
            return str(node.value)
        try:
            return self.constructor.construct_object(node)
        except (YAMLError, ValueError):
            return str(node.value)

    def refuse_tag(self, node: Node, path: Path, plain: str) -> None:
        if node.tag != f"{TAG}{plain}":
            self.add_problem(path, "tag", f"{describe_path(path)}: YAML tags are not allowed")
