"""The port that looks at a source for `replicator init`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from replicator.domain.errors import ConfigProblem


@dataclass(frozen=True, slots=True)
class DiscoveredTable:
    """A table of a source.

    - `name`: as in `match`. `keys`: its primary key.
    - `rows`: an estimate, None if unknown.
    - `identity`: its replica identity, empty if it has none.
    - `settings`: further keys of its entry in the config. `note`: a comment.
    """

    name: str
    keys: tuple[str, ...] = ()
    rows: int | None = None
    identity: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class DiscoveredSource:
    """A source of the config, and what reading it needs.

    - `title`: one line for people, without secrets.
    - `settings`: the keys of the source in the config. `${NAME}` stands for `variables`.
    - `variables`: the values of secrets, by the names of their variables.
    - `files`: texts of further files, by their paths in the project.
    - `sql`: statements that the server still needs, each with a comment.
    - `steps`: what to do before `replicator run`, as commands or sentences.
    - `dsn`, `identity`: of a database, its URL with the password, and a text that no other database has.
    """

    name: str
    title: str
    settings: Mapping[str, Any]
    tables: Sequence[DiscoveredTable]
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    sql: Sequence[str] = ()
    steps: Sequence[str] = ()
    dsn: str = ""
    identity: str = ""


class PasswordNeeded(ConfigProblem):
    """The server asks for a password that neither the URL nor the environment has. `sentence` names user and server."""


Discover: TypeAlias = Callable[[str, str | None], Sequence[DiscoveredSource]]
"""The sources behind a URL, with the password if it was asked for. Changes nothing. Registered under the URL's scheme,
`folder` without one. Raises `PasswordNeeded`, ConfigProblem for a URL without tables, Retryable and EnvironmentProblem for a
server that does not answer or refuses."""
