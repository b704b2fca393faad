"""Adapters of installed packages, found by their entry points."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.extras import explain_missing_modules
from replicator.ports.runtime import OptionsCheck


def list_names(group: str) -> tuple[str, ...]:
    """The adapters of a group, sorted."""
    return tuple(sorted({entry.name for entry in _read_entries(tuple(sys.path)).select(group=group)}))


def load_adapter(group: str, name: str, config_line: str = "") -> Any:
    """The class or factory `name` in `group`.

    ConfigProblem with the available names if there is none. EnvironmentProblem if it cannot be imported.
    """
    entry = next((one for one in _read_entries(tuple(sys.path)).select(group=group) if one.name == name), None)
    if entry is None:
        have = ", ".join(list_names(group)) or "none is installed"
        kind = group.removeprefix("replicator.").rstrip("s").replace("_", " ")
        raise ConfigProblem(f"{config_line}there is no {kind} called {name!r}", next_step=f"There are: {have}.")
    if entry.module.partition(".")[0] == "adapters":
        _refuse_other_package(tuple(sys.path))
    with explain_missing_modules(f"the adapter {entry.name!r} ({entry.value})"):
        return entry.load()


@cache
def _read_entries(_import_path: tuple[str, ...]) -> Any:
    """The entry points of all installed packages: reads a file of each. A run asks for some fifteen groups and adapters."""
    return entry_points()


@cache
def _refuse_other_package(_import_path: tuple[str, ...]) -> None:
    """Raise EnvironmentProblem if the unrelated package `adapters` is installed too: whichever was installed last has
    overwritten the other (docs/decisions/0022)."""
    try:
        version("adapters")
    except PackageNotFoundError:
        return
    raise EnvironmentProblem(
        "The package 'adapters' is installed in this environment, and its files have replaced Replicator's own.",
        next_step="Install Replicator in an environment of its own, or: pip uninstall adapters, then "
        "pip install --force-reinstall --no-deps replicator.",
    )


@dataclass(frozen=True, slots=True)
class Plugins:
    """The entry points of installed packages: transports, formats, kinds of sinks and of both kinds of stores. Also, by
    engine, the check of its options' names.

    Other options of adapters pass unchecked through the settings; the adapter's options model checks them.
    """

    transports: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    sinks: frozenset[str] = frozenset()
    dead_letters: frozenset[str] = frozenset()
    event_stores: frozenset[str] = frozenset()
    engine_options: Mapping[str, OptionsCheck] = field(default_factory=dict)


NO_PLUGINS = Plugins()
