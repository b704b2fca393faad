"""Settings for this installation: the file, and the names of the adapters that are installed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from replicator.settings import Document, Loaded, Plugins, checked, load

from .plugins import load as load_plugin
from .plugins import names

OPTIONS = "replicator.engine_options"
DEFAULT = Path("config/replicator.yaml")


def nearest() -> Path:
    """The config file to use when none is named: REPLICATOR_CONFIG, or else config/replicator.yaml of the working directory
    or of the nearest folder above it that has one."""
    named = os.environ.get("REPLICATOR_CONFIG")
    if named:
        return Path(named)
    here = Path.cwd()
    return next((folder / DEFAULT for folder in (here, *here.parents) if (folder / DEFAULT).is_file()), DEFAULT)


def installed() -> Plugins:
    """What the installed packages offer."""
    return Plugins(
        transports=_for_any_engine("replicator.sources"),
        formats=frozenset(names("replicator.decoders")),
        sinks=_for_any_engine("replicator.sinks"),
        dead_letters=frozenset(names("replicator.dead_letters")) - {"delta", "postgres", "kafka"},
        engine_options={name: load_plugin(OPTIONS, name) for name in names(OPTIONS)},
    )


def _for_any_engine(group: str) -> frozenset[str]:
    """The names in a group as a config says them: `kafka_spark` is `kafka` on the engine `spark`."""
    there, engines = names(group), names("replicator.engines")
    return frozenset(next((n.removesuffix(f"_{e}") for e in engines if n.endswith(f"_{e}")), n) for n in there)


def read(path: Path, env: str | None, overrides: Iterable[str]) -> Loaded:
    """The settings of one run; ConfigError with every finding when they cannot be used."""
    return load(path, env, overrides, plugins=installed())


def read_document(document: Document, root: Path, files: tuple[Path, ...] = ()) -> Loaded:
    """The same for settings that a program put together; `document` is used up."""
    return checked(document, root, files, plugins=installed())


def describe_defaults(loaded: Loaded) -> list[str]:
    """A sentence for each name and place that the config leaves out, and that stored data depends on."""
    found, letters = [], loaded.settings.dead_letters
    if ("pipeline",) not in loaded.origins:
        found.append(f"the pipeline is called {loaded.settings.pipeline}, as its folder is (`pipeline` names another)")
    if ("dead_letters",) not in loaded.origins:
        place = getattr(letters, "path", None) or "the table _replicator.dead_letters of the first PostgreSQL sink"
        found.append(f"rejected records are kept in {place} (`dead_letters` names another place)")
    return found
