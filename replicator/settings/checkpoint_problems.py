"""Checks `snapshots` of event logs against the rest of a config."""

from __future__ import annotations

from collections.abc import Iterator

from .config_view import NON_MIRROR_KINDS, ConfigView, get_text
from .findings import Path, PathProblem, describe_path, quote_name


def check_checkpoints(config: ConfigView) -> Iterator[PathProblem]:
    """Logs whose snapshots would never be taken."""
    for name, sink in (config.sinks or {}).items():
        if sink.get("kind") != "event_log" or not sink.get("snapshots"):
            continue
        at: Path = ("sinks", name)
        if name not in _list_read_logs(config):
            sentence = (
                f"{describe_path((*at, 'snapshots'))}: no table whose history is read from "
                f"{quote_name(name)} has another target"
            )
            step = "a table's history is read from the first event log in a folder of its 'to'; name it there, or remove"
            yield PathProblem((*at, "snapshots"), "inapplicable", sentence, f"{step} 'snapshots'")


def _list_read_logs(config: ConfigView) -> set[str]:
    """The event logs from which the past of some table with a target is read."""
    found = set()
    for table in config.tables:
        sinks = [entry.sink for entry in table.to or () if entry.sink is not None]
        logs = [sink for sink in sinks if config.get_kind(sink) == "event_log" and _is_in_folder(config, sink)]
        if logs and any(config.get_kind(sink) not in NON_MIRROR_KINDS for sink in sinks):
            found.add(logs[0])
    return found


def _is_in_folder(config: ConfigView, sink: str) -> bool:
    path = get_text((config.sinks or {}).get(sink, {}), "path")
    return path is not None and "://" not in path
