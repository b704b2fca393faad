"""`${NAME}` and `${NAME:-default}` from the environment; for secrets also `NAME_FILE`, and a folder of secrets. The file
`.env` of a project has values that the environment does not have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from replicator.domain.errors import ConfigProblem
from replicator.ports.options import ENCODE, has_unclear_user, is_secret

from .document import Document, Path, PathProblem, describe_path

REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-(?P<value>[^{}]*))?\}|\$\{")
BREAKS_URL = re.compile(r"[@/?#%\s\x00-\x1f]")
MAX_SECRET_BYTES = 64 * 1024
SECRETS_DIR = "REPLICATOR_SECRETS_DIR"
"""The variable that names a folder with a file per secret, as Docker and Kubernetes create it. A file has the name of the
variable, or the same in lower case."""


def interpolate(document: Document, environ: Mapping[str, str]) -> set[Path]:
    """Replace the references in every text value, in place; keys are left alone, `$${` stands for `${`.

    Problems:

    - an unset variable without a default, or a malformed reference
    - for secrets, an empty variable, or more than one of NAME, NAME_FILE and a file in the folder of secrets
    - for secrets, a file that cannot be read, or a URL whose password ends too early

    Returns the paths of the values that could not be completed. A variable that is set but empty counts as unset if there
    is a default, as in a shell.
    """
    work = _Interpolation(document, environ)
    document.data = work.replace_value(document.data, ())
    return work.failed


class _Interpolation:
    def __init__(self, document: Document, environ: Mapping[str, str]) -> None:
        self.document = document
        self.environ = environ
        self.failed: set[Path] = set()

    def replace_value(self, value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {key: self.replace_value(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.replace_value(item, (*path, index)) for index, item in enumerate(value)]
        if isinstance(value, str) and "${" in value:
            return self.replace_text(value, path)
        return value

    def replace_text(self, value: str, path: Path) -> str:
        resolved = {reference: self.resolve_reference(reference, path) for reference in REFERENCE.finditer(value)}
        texts = iter(resolved.values())
        text = REFERENCE.sub(lambda _: next(texts), value)
        if path[-1:] == ("dsn",) and path not in self.failed and has_unclear_user(text):
            names = [reference["name"] for reference, part in resolved.items() if BREAKS_URL.search(part)]
            why = f"has a user or password with characters that end it too early, from {' and '.join(names) or 'its text'}"
            return self.add_problem(path, "dsn", why, ENCODE)
        return text

    def resolve_reference(self, reference: re.Match[str], path: Path) -> str:
        name = reference["name"]
        if name is None and reference.group() == "$${":
            return "${"
        if name is None:
            return self.add_problem(path, "reference", "holds a malformed ${...}", "write ${NAME} or ${NAME:-default}")
        text = self.read_secret(name, path) if is_secret(path) else self.environ.get(name)
        if (text and (text.strip() or not is_secret(path))) or path in self.failed:
            return text or ""
        if reference["default"] is not None:
            return str(reference["value"])
        if is_secret(path) and text is not None:
            return self.add_problem(
                path, "secret", f"finds the variable {name} empty", f"set it, or write ${{{name}:-default}}"
            )
        return self.add_unset_problem(name, path) if text is None else text

    def add_unset_problem(self, name: str, path: Path) -> str:
        also = f", set {name}_FILE, put a file {name} into {SECRETS_DIR}" if is_secret(path) else ""
        hint = f"set {name} in the environment or in .env{also}, or write ${{{name}:-default}}"
        return self.add_problem(path, "unset", f"needs the environment variable {name}", hint)

    def read_secret(self, name: str, path: Path) -> str | None:
        direct, file, secret = self.environ.get(name), self.environ.get(f"{name}_FILE"), self.find_secret_file(name)
        sources = [
            *([name] if direct is not None else []),
            *([f"{name}_FILE"] if file else []),
            *([f"{secret.name} in {SECRETS_DIR}"] if secret else []),
        ]
        if len(sources) > 1:
            text = f"finds {'both ' if len(sources) == 2 else ''}{' and '.join(sources)} set"
            return self.add_problem(path, "secret", text, "leave one of them")
        if file:
            return self.read_secret_file(f"{name}_FILE", FilePath(file), path)
        return self.read_secret_file(sources[0], secret, path) if secret else direct

    def find_secret_file(self, name: str) -> FilePath | None:
        """The file of the folder of secrets, if there is one."""
        folder = self.environ.get(SECRETS_DIR)
        files = [FilePath(folder, called) for called in dict.fromkeys((name, name.lower()))] if folder else []
        return next((file for file in files if file.is_file()), None)

    def read_secret_file(self, variable: str, file: FilePath, path: Path) -> str:
        """The file's text without its line end, which editors add and no password has."""
        try:
            with file.open("rb") as opened:
                raw = opened.read(MAX_SECRET_BYTES + 1)
            text = raw.decode("utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8 text"
            return self.add_problem(path, "secret", f"cannot read the file that {variable} names ({why})")
        if not text or len(raw) > MAX_SECRET_BYTES:
            sentence = f"finds the file that {variable} names empty, or larger than {MAX_SECRET_BYTES} bytes"
            return self.add_problem(path, "secret", sentence)
        return text

    def add_problem(self, path: Path, code: str, message: str, suggestion: str = "") -> str:
        if path not in self.failed:
            self.document.problems.append(PathProblem(path, code, f"{describe_path(path)} {message}", suggestion))
        self.failed.add(path)
        return ""


ENV_FILE = ".env"
VARIABLE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
LINE_STEP = "Write NAME=VALUE, with single quotes around a value that has spaces or quotes."


def add_env_file(environ: Mapping[str, str], root: FilePath) -> dict[str, str]:
    """`environ` with the variables of `.env` in the folder `root` that it has neither as NAME nor as NAME_FILE.

    Lines are NAME=VALUE, quoted as in a shell; `export` before a name, empty lines and lines that start with # are allowed.
    Raises ConfigProblem, which never contains a value.
    """
    variables = read_env_file(root / ENV_FILE)
    names = {name.removesuffix("_FILE") for name in environ}
    return {**{name: value for name, value in variables.items() if name.removesuffix("_FILE") not in names}, **environ}


def read_env_file(file: FilePath) -> dict[str, str]:
    """The variables of the file; none if there is no file. Raises ConfigProblem as `add_env_file` does."""
    try:
        text = file.read_text(encoding="utf-8-sig") if file.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigProblem(f"{file} cannot be read: {reason}", next_step="Correct the file, or remove it.") from None
    variables = {}
    lines = enumerate(text.split("\n"), 1)
    for number, line in lines:
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        while (parts := _split(entry)) is None and (further := next(lines, None)) is not None:
            entry = f"{entry}\n{further[1]}"  # A quoted value goes on over lines.
        match = VARIABLE.fullmatch(entry)
        if match is None or parts is None or len(parts) > 1:
            raise ConfigProblem(f"{file}:{number} is not a variable", next_step=LINE_STEP)
        variables[match[1]] = "".join(parts)
    return variables


def _split(entry: str) -> list[str] | None:
    """The words of the value; None if a quote is not closed."""
    try:
        return shlex.split(entry.partition("=")[2])
    except ValueError:
        return None


def render_env_file(variables: Mapping[str, str], comment: str) -> str:
    """The text of a `.env` with these variables, which a shell can also read."""
    return "\n".join([f"# {comment}", *(f"{name}={shlex.quote(value)}" for name, value in variables.items()), ""])
