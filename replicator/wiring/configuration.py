"""Loads settings for this installation: the config file, and the names of the installed adapters. Checks them without a
connection."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from replicator.domain.errors import ConfigProblem
from replicator.settings import ConfigError, Document, Loaded, Plugins, check_document, load_settings
from replicator.settings.adapter_models import DeadLetterSettings, EventStoreSettings
from replicator.settings.plugins import list_names
from replicator.settings.plugins import load_adapter as load_plugin

from . import adapters, projections

OPTIONS_GROUP = "replicator.engine_options"
DEFAULT = Path("config/replicator.yaml")


def find_config_file() -> Path:
    """The default config file: `REPLICATOR_CONFIG`, or `config/replicator.yaml` in the working directory or the
    nearest folder above it."""
    named = os.environ.get("REPLICATOR_CONFIG")
    if named:
        return Path(named)
    folder = Path.cwd()
    return next((one / DEFAULT for one in (folder, *folder.parents) if (one / DEFAULT).is_file()), DEFAULT)


def list_plugins() -> Plugins:
    """The adapters of the installed packages."""
    return Plugins(
        transports=_list_names("replicator.sources"),
        formats=frozenset(list_names("replicator.decoders")),
        sinks=_list_names("replicator.sinks"),
        dead_letters=frozenset(list_names("replicator.dead_letters")) - DeadLetterSettings.adapters,
        event_stores=_list_names("replicator.event_stores") - EventStoreSettings.adapters,
        engine_options={name: load_plugin(OPTIONS_GROUP, name) for name in list_names(OPTIONS_GROUP)},
    )


def _list_names(group: str) -> frozenset[str]:
    """The names of a group as in the config: `kafka_spark` is `kafka` on the engine `spark`."""
    names, engines = list_names(group), list_names("replicator.engines")
    return frozenset(next((n.removesuffix(f"_{e}") for e in engines if n.endswith(f"_{e}")), n) for n in names)


def read_config(path: Path, env: str | None, overrides: Iterable[str]) -> Loaded:
    """The settings of one run. ConfigError with all findings if they are unusable."""
    return load_settings(path, env, overrides, plugins=list_plugins())


def read_document(document: Document, root: Path, files: tuple[Path, ...] = ()) -> Loaded:
    """The same for settings that a program has built. `document` cannot be used again."""
    return check_document(document, root, files, plugins=list_plugins())


def describe_defaults(loaded: Loaded) -> list[str]:
    """A sentence for each default name or location on which stored data depends."""
    sentences, letters = [], loaded.settings.dead_letters
    if ("pipeline",) not in loaded.origins:
        sentences.append(
            f"the pipeline has the name of its folder, {loaded.settings.pipeline} (set another one with `pipeline`)"
        )
    if ("dead_letters",) not in loaded.origins:
        location = getattr(letters, "path", None) or "the table _replicator.dead_letters of the first PostgreSQL sink"
        sentences.append(f"rejected records are stored in {location} (set another place with `dead_letters`)")
    return sentences


def refuse_unusable(loaded: Loaded) -> None:
    """Raise ConfigError with everything that would prevent the start of `run`. Connects to nothing."""
    findings = []
    for name in dict.fromkeys(table.source for table in loaded.settings.tables):
        try:
            adapters.build_decoder(loaded, name)
        except ConfigProblem as problem:
            at = ("sources", name)
            findings.append(projections.make_finding(loaded, at, "unusable", problem.sentence, problem.next_step))
    findings += projections.list_findings(loaded)
    state = Path(loaded.settings.state)
    if state.exists() and not state.is_dir():
        sentence = "state is a file, and must be a folder"
        findings.append(projections.make_finding(loaded, ("state",), "unusable", sentence, "name another one"))
    if findings:
        raise ConfigError(findings)
