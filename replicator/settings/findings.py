"""Findings about a configuration, their origins, and the error that has all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from replicator.domain.errors import ConfigProblem

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

    def to_finding(self, origins: dict[Path, Origin], fallback: Origin) -> Finding:
        """The finding at the origin of `path`, or of the nearest value around it that was written down."""
        path = self.path
        while path and path not in origins:
            path = path[:-1]
        origin = origins.get(path, fallback)
        return Finding(self.severity, self.code, self.message, origin.file, origin.line, self.suggestion)


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
