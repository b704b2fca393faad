"""The port to checks of the outside: what `doctor` runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing looked at. `sentence` says what was found, `next_step` what to do unless it is `ok`."""

    severity: Literal["ok", "warning", "error"]
    subject: str
    sentence: str
    next_step: str = ""


class Check(Protocol):
    """Looks at one kind of thing (a broker, a source database, a target, a lake, a Java runtime).

    Never raises for what it finds, never changes anything that lasts, and ends within seconds when nobody answers.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        """`name` is the name in the config, `options` the keys under it, secrets in clear."""

    def diagnose(self) -> Sequence[Diagnosis]:
        """Everything found, good and bad, in a sensible order of reading."""


@dataclass(frozen=True, slots=True)
class WrongOption:
    """An option of an engine that is not the user's to set: its name, what is wrong with it (the rest of a sentence that
    begins with the name), and what to do. Never holds its value."""

    name: str
    problem: str
    next_step: str


OptionsCheck: TypeAlias = Callable[[Iterable[str]], Sequence[WrongOption]]
"""Judges the names of an engine's options without the engine. Registered under the engine's name."""
