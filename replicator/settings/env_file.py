"""The file `.env` of a project: values for `${NAME}` that the environment does not have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from replicator.domain.errors import ConfigProblem

ENV_FILE = ".env"
VARIABLE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
LINE_STEP = "Write NAME=VALUE, with single quotes around a value that has spaces or quotes."


def add_env_file(environ: Mapping[str, str], root: Path) -> dict[str, str]:
    """`environ` with the variables of `.env` in the folder `root` that it has neither as NAME nor as NAME_FILE.

    Lines are NAME=VALUE, quoted as in a shell; `export` before a name, empty lines and lines that start with # are allowed.
    Raises ConfigProblem, which never contains a value.
    """
    found = read_env_file(root / ENV_FILE)
    known = {name.removesuffix("_FILE") for name in environ}
    return {**{name: value for name, value in found.items() if name.removesuffix("_FILE") not in known}, **environ}


def read_env_file(file: Path) -> dict[str, str]:
    """The variables of the file; none if there is no file. Raises ConfigProblem as `add_env_file` does."""
    try:
        text = file.read_text(encoding="utf-8-sig") if file.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigProblem(f"{file} cannot be read: {reason}", next_step="Correct the file, or remove it.") from None
    return dict(_read_variables(file, text))


def _read_variables(file: Path, text: str) -> Iterator[tuple[str, str]]:
    lines = enumerate(text.split("\n"), 1)
    for number, line in lines:
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        while (parts := _split(entry)) is None and (further := next(lines, None)) is not None:
            entry = f"{entry}\n{further[1]}"  # A quoted value goes on over lines.
        found = VARIABLE.fullmatch(entry)
        if found is None or parts is None or len(parts) > 1:
            raise ConfigProblem(f"{file}:{number} is not a variable", next_step=LINE_STEP)
        yield found[1], "".join(parts)


def _split(entry: str) -> list[str] | None:
    """The words of the value; None if a quote is not closed."""
    try:
        return shlex.split(entry.partition("=")[2])
    except ValueError:
        return None


def render_env_file(variables: Mapping[str, str], comment: str) -> str:
    """The text of a `.env` with these variables, which a shell can also read."""
    return "\n".join([f"# {comment}", *(f"{name}={shlex.quote(value)}" for name, value in variables.items()), ""])
