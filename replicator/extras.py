"""The extras of the package, as its metadata lists them, and the error for a module that is not installed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from .domain.errors import EnvironmentProblem


@contextmanager
def explain_missing_modules(user: str) -> Iterator[None]:
    """Raise the error for a module that the body imports and that is not installed. `user`: the part of the
    program that needs it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise explain_missing(missing, user) from missing


def explain_missing(missing: ModuleNotFoundError, user: str) -> EnvironmentProblem:
    """The error that names the module, and the extra to install."""
    module = missing.name or ""
    sentence = f"{user} needs the module {module!r}, which is not installed"
    if module.partition(".")[0] == "adapters":
        # Without its metadata: `settings.plugins` refuses a package that is installed.
        folder = "A folder called 'adapters' hides replicator's own package"
        return EnvironmentProblem(sentence, next_step=f"{folder}: remove it from PYTHONPATH or the current folder.")
    extra = find_extra(module, user)
    install = f"pip install 'replicator[{extra}]'" if extra else f"Install the package of {module!r} into this environment."
    return EnvironmentProblem(sentence, next_step=install)


def find_extra(module: str, user: str = "") -> str | None:
    """The extra that installs a module; None if none does. If several do, it is the extra that `user` names first, or else
    the smallest."""
    module = _normalize(module.partition(".")[0])
    words = re.findall("[a-z]+", user)
    extras = {}
    for extra, packages in read_extras().items():
        # Packages have the names of their modules, except `delta` of `delta-spark`.
        if any(package == module or package.startswith(f"{module}-") for package in packages):
            extras[extra] = packages
    return min(extras, key=lambda e: (words.index(e) if e in words else len(words), len(extras[e])), default=None)


@cache
def read_extras() -> Mapping[str, frozenset[str]]:
    """The packages that each extra installs. Empty if the package is not installed, as on executors of Spark."""
    from importlib.metadata import PackageNotFoundError, requires  # noqa: PLC0415 - half the start of `--help`

    try:
        requirements = requires("replicator") or ()
    except PackageNotFoundError:
        return {}
    extras: dict[str, frozenset[str]] = {}
    for text in requirements:
        package, extra = re.match(r"[\w.-]+", text), re.search(r"""\bextra == ["']([\w-]+)["']""", text)
        if package and extra:
            extras[extra[1]] = extras.get(extra[1], frozenset()) | {_normalize(package[0])}
    return extras


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
