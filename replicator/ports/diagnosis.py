"""The port of the checks that `doctor` runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one check. `sentence` describes the finding, `next_step` how to fix it unless it is `ok`."""

    severity: Literal["ok", "warning", "error"]
    subject: str
    sentence: str
    next_step: str = ""


class Check(Protocol):
    """Checks one kind of thing (a broker, a source database, a target, a lake, a Java runtime).

    Findings never raise. A check never changes anything permanently, and ends within seconds if nothing answers.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        """`name` is the name in the config, `options` are the keys under it, secrets in clear text."""

    def diagnose(self) -> Sequence[Diagnosis]:
        """All findings, good and bad, in a useful order for reading."""


@dataclass(frozen=True, slots=True)
class WrongOption:
    """An option of an engine that users must not set. It has a name, a problem (the rest of a sentence that starts with
    the name), and a next step. Never contains the value."""

    name: str
    problem: str
    next_step: str


OptionsCheck: TypeAlias = Callable[[Iterable[str]], Sequence[WrongOption]]
"""Checks the names of an engine's options without the engine. Registered under the engine's name."""
