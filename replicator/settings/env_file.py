"""The file `.env` of a project: values for `${NAME}` that the environment does not have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from replicator.domain.errors import ConfigProblem

ENV_FILE = ".env"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LINE_STEP = "Write NAME=VALUE, with single quotes around a value that has spaces or quotes."


def add_env_file(environ: Mapping[str, str], root: Path) -> dict[str, str]:
    """`environ` with the variables of `.env` in the folder `root` that it has neither as NAME nor as NAME_FILE.

    Lines are NAME=VALUE, quoted as in a shell; `export` before a name, empty lines and lines that start with # are allowed.
    Raises ConfigProblem, which never contains a value.
    """
    file = root / ENV_FILE
    try:
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigProblem(f"{file} cannot be read: {reason}", next_step="Correct the file, or remove it.") from None
    texts = [(number, line.strip().removeprefix("export ")) for number, line in enumerate(lines, 1)]
    found = dict(_read_line(f"{file}:{number}", text) for number, text in texts if text and not text.startswith("#"))
    known = {name.removesuffix("_FILE") for name in environ}
    return {**{name: value for name, value in found.items() if name.removesuffix("_FILE") not in known}, **environ}


def _read_line(place: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    try:
        parts = shlex.split(value)
    except ValueError:  # A quote is not closed.
        parts = ["", ""]
    if not equals or not NAME.fullmatch(name) or len(parts) > 1:
        raise ConfigProblem(f"{place} is not a variable", next_step=LINE_STEP)
    return name, "".join(parts)


def render_env_file(variables: Mapping[str, str], comment: str) -> str:
    """The text of a `.env` with these variables, which a shell can also read."""
    return "\n".join([f"# {comment}", *(f"{name}={shlex.quote(value)}" for name, value in variables.items()), ""])
