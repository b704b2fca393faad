"""The text of a config: its files and overrides as one document, in which each value has its line; and findings, which name
these lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any, Literal, Protocol

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from replicator.domain.errors import ConfigProblem, suggest_name
from replicator.domain.plain_values import format_count

Path = tuple[str | int, ...]
"""The place of a value inside the document: `("tables", 0, "to", 1, "sink")`."""

Severity = Literal["error", "warning"]

PRINTABLE_NAME = re.compile(r"[\w.*?\-\[\]!$ ]{1,64}")


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a value: a file and its line (1-based), or `--set PATH` (no line)."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong (`error`) or doubtful (`warning`) in the configuration.

    `code` is stable and for programs, `message` and `suggestion` are for people. They only quote keys, and names of
    tables, sinks and sources, never a value of the configuration that could be a secret.
    """

    severity: Severity
    code: str
    message: str
    file: str
    line: int | None
    suggestion: str = ""

    def __str__(self) -> str:
        text = f"{Origin(self.file, self.line)}: {self.message}"
        return f"{text}; {self.suggestion}" if self.suggestion else text

    def as_dict(self) -> dict[str, str | int | None]:
        """The finding as `--json` prints it."""
        return {
            "severity": self.severity,
            "code": self.code,
            "message": self.message,
            "file": self.file,
            "line": self.line,
            "suggestion": self.suggestion,
        }


@dataclass(frozen=True, slots=True)
class PathProblem:
    """A finding that knows its path but not yet its line; `to_finding` turns it into a `Finding`."""

    path: Path
    code: str
    message: str
    suggestion: str = ""
    severity: Severity = "error"
    origin: Origin | None = None
    """The place of the problem; None if it is the origin of `path`."""

    def to_finding(self, origins: Mapping[Path, Origin]) -> Finding:
        """The finding at its origin."""
        origin = self.origin or find_origin(origins, self.path)
        return Finding(self.severity, self.code, self.message, origin.file, origin.line, self.suggestion)


def find_origin(origins: Mapping[Path, Origin], path: Path) -> Origin:
    """The origin of the value at `path`, or of the nearest value around it that was written down."""
    while path and path not in origins:
        path = path[:-1]
    return origins[path]


class ConfigError(ConfigProblem):
    """The configuration cannot be used. `findings` holds everything that was found, in the order of files and lines."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(str(finding) for finding in self.findings))


def quote_name(name: object) -> str:
    """`name` in quotes when it looks like a name; otherwise a stand-in, as it may be a misplaced secret."""
    text = str(name)
    return f"'{text}'" if PRINTABLE_NAME.fullmatch(text) else "(a name that is not printed)"


def describe_path(path: Path) -> str:
    """A path for people: `sources.shop`, `tables[0].to[1]`; the document itself is `the top level`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part if PRINTABLE_NAME.fullmatch(part) else '(...)'}"
    return text.lstrip(".") or "the top level"


def describe_parent(path: Path) -> str:
    """The place of a key: `in sources.shop`, `at the top level`."""
    return f"in {describe_path(path)}" if path else "at the top level"


def make_idle_key(path: Path, key: str, why: str, step: str = "remove it") -> PathProblem:
    """The problem of a key of the mapping at `path` that has no effect there. `why` ends the sentence."""
    sentence = f"key '{key}' in {describe_path(path)} means nothing{why}"
    return PathProblem((*path, key), "inapplicable", sentence, step)


# YAML text to plain data, with the line of every value. Bounded, and blind to tags: nothing is ever constructed.

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
        # Opening a pipe by its name waits for its writer; those under /dev and /proc the caller's shell has opened already.
        if path.is_fifo() and path.parts[1:2] not in (("dev",), ("proc",)):
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
        reason, hint = next((explanation for words, *explanation in SYNTAX if words in problem), ("a syntax error", ""))
        sentence += f" at column {column + 1}: {reason}"
    # YAML reads the braces of a reference without quotes as its own.
    if any(map(BARE_REFERENCE.search, text.splitlines()[max(0, line - 1) : line + 1])):
        hint = "put ${...} in quotes where it stands inside { }"
    document.origins[()] = origin_of(line, ())
    document.problems.append(PathProblem((), "yaml", sentence, hint))
    return document


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
        origin = self.origin_of(node.start_mark.line, path)
        self.document.problems.append(PathProblem(path, "key", message, suggestion, origin=origin))

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


# Layers of configuration that are merged key by key: the file, an environment's overlay, `--set`.

ENVIRONMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
SEGMENT = re.compile(r'"(?P<quoted>[^"]*)"|(?P<name>[^.\[\]"=]+)|\[(?P<index>\d+)\]')


def load_layers(
    path: str | FilePath, env: str | None = None, overrides: Iterable[str] = (), *, environ: Mapping[str, str] | None = None
) -> tuple[Document, tuple[FilePath, ...], FilePath]:
    """The merged document of the file `path`, its overlay and the overrides, not yet checked. Also the files, and the
    folder that relative paths start from. As `load_settings`, but an unreadable file is a problem in the document."""
    environ = os.environ if environ is None else environ
    file = FilePath(path)
    document = read_document(file)
    files = [file]
    overlay = env or environ.get("REPLICATOR_ENV")
    if overlay:
        folder, is_name = file.parent / "environments", ENVIRONMENT_NAME.fullmatch(overlay) is not None
        overlay_file = folder / f"{overlay}.yaml"
        if is_name and overlay_file.is_file():
            merge_overlay(document, read_document(overlay_file))
            files.append(overlay_file)
        else:
            names = sorted(one.stem for one in folder.glob("*.yaml"))
            hint = suggest_name(overlay, names) or f"known: {', '.join(names) or 'none'}"
            sentence = f"there is no such file in {folder}"
            origin = Origin(f"--env {overlay}" if is_name else "--env")
            _add_problem(document, origin, "unknown_environment", sentence, hint)
    apply_assignments(document, overrides)
    return document, tuple(files), file.absolute().parent.parent


def merge_overlay(base: Document, overlay: Document) -> None:
    """Lay `overlay` over `base`, in place: mappings merge, everything else replaces, `null` removes the key.

    Removing a key that is not there is a problem, as it is most likely a typo.
    """
    for problem in overlay.problems:
        base.problems.append(replace(problem, origin=problem.origin or find_origin(overlay.origins, problem.path)))
    if overlay.data is None or not isinstance(base.data, dict):
        return
    if not isinstance(overlay.data, dict):
        _add_problem(base, overlay.origins[()], "not_a_mapping", "must be a mapping of keys to values")
        return
    _merge_mappings(base, overlay, base.data, overlay.data, ())


def _merge_mappings(base: Document, overlay: Document, under: dict[str, Any], over: dict[str, Any], path: Path) -> None:
    for key, value in over.items():
        below = (*path, key)
        if isinstance(value, dict) and isinstance(under.get(key), dict):
            _merge_mappings(base, overlay, under[key], value, below)
        elif value is None:
            _remove_key(base, under, below, overlay.origins[below])
        else:
            under[key] = value
            _replace_origins(base, below, {p: at for p, at in overlay.origins.items() if p[: len(below)] == below})


def _remove_key(base: Document, parent: dict[str, Any], path: Path, origin: Origin) -> None:
    key = str(path[-1])
    if key not in parent:
        suggestion = suggest_name(key, parent) or "null removes a key that a lower layer has set"
        _add_problem(
            base, origin, "nothing_to_remove", f"there is no {quote_name(key)} {describe_parent(path[:-1])}", suggestion
        )
        return
    del parent[key]
    _replace_origins(base, path, {})


def _replace_origins(base: Document, path: Path, origins: dict[Path, Origin]) -> None:
    for old in [p for p in base.origins if p[: len(path)] == path]:
        del base.origins[old]
    base.origins |= origins


def _add_problem(base: Document, origin: Origin, code: str, message: str, suggestion: str = "") -> None:
    """Record a problem whose origin is not the one that the document has for its path."""
    base.problems.append(PathProblem((), code, message, suggestion, origin=origin))


def apply_assignments(base: Document, assignments: Iterable[str]) -> None:
    """Apply `--set` assignments `a.b=value`, in place and in order. Values are YAML. A mapping or list replaces the
    whole value, and `null` removes it. Items of lists have an index (`tables[0].source` or `tables.0.source`). A name
    with dots is quoted (`sources.shop.options."linger.ms"=5`)."""
    for assignment in assignments if isinstance(base.data, dict) else ():
        left, equals, right = assignment.partition("=")
        parts = _split_path(left.strip())
        origin = Origin(f"--set {left.strip()}" if equals else "--set")
        if not equals or not parts:
            _add_problem(base, origin, "set_syntax", "is not of the form NAME.NAME=VALUE", "for example --set engine=local")
            continue
        parent = _find_parent(base, parts, origin)
        if parent is None:
            continue
        container, path = parent
        value = parse_document(right, lambda _line, _path, origin=origin: origin)
        for problem in value.problems:
            _add_problem(base, origin, problem.code, problem.message, problem.suggestion)
        if value.data is not None or not isinstance(container, dict):
            container[path[-1]] = value.data
            _replace_origins(base, path, {(*path, *below): origin for below in value.origins})
        elif not value.problems:
            _remove_key(base, container, path, origin)


def _split_path(text: str) -> tuple[str | int, ...]:
    """`a."b.c"[0].d` as ("a", "b.c", 0, "d"); empty when it is not such a path."""
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        at += text[at] == "." and bool(parts)
        segment = SEGMENT.match(text, at)
        if segment is None:
            return ()
        at = segment.end()
        parts.append(int(segment["index"]) if segment["index"] else segment["quoted"] or segment["name"] or "")
    return tuple(parts)


def _find_parent(base: Document, parts: Path, origin: Origin) -> tuple[Any, Path] | None:
    """The container of the last part, made on the way where a mapping is missing, and the path with real indexes."""
    node = base.data
    path: Path = ()
    for depth, part in enumerate(parts):
        step = _find_step(base, node, part, path, origin)
        if step is None:
            return None
        path = (*path, step)
        if depth == len(parts) - 1:
            return node, path
        if isinstance(node, dict) and node.get(step) is None:
            node[step] = {}
            base.origins.setdefault(path, origin)
        node = node[step]
    return None


def _find_step(base: Document, node: Any, part: str | int, path: Path, origin: Origin) -> str | int | None:
    """The key or index that `part` means inside `node`; None, and a problem, when it means nothing there."""
    if isinstance(node, dict) and isinstance(part, str):
        return part
    if isinstance(node, list) and str(part).isdigit():
        if int(part) < len(node):
            return int(part)
        _add_problem(
            base, origin, "set_path", f"{describe_path(path)} has {format_count(len(node), 'entry')}, the first is 0"
        )
        return None
    kind = "a list: give an index" if isinstance(node, list) else "not a mapping or a list with such an entry"
    _add_problem(base, origin, "set_path", f"{describe_path(path)} is {kind}")
    return None
