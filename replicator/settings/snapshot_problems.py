"""What must hold between snapshots of states and the rest of a config."""

from __future__ import annotations

from collections.abc import Iterator

from .findings import Path, Problem, place, quoted
from .views import NO_MIRRORS, View, text


def snapshot_problems(config: View) -> Iterator[Problem]:
    """Logs whose snapshots would never be taken."""
    for name, sink in (config.sinks or {}).items():
        if sink.get("kind") != "event_log" or not sink.get("snapshots"):
            continue
        at: Path = ("sinks", name)
        if name not in _read(config):
            sentence = f"{place((*at, 'snapshots'))}: no table whose past is read from {quoted(name)} has another target"
            step = (
                "a table's past is read from the first event log of its 'to' that is in a folder; name it there, or remove"
            )
            yield Problem((*at, "snapshots"), "inapplicable", sentence, f"{step} 'snapshots'")


def _read(config: View) -> set[str]:
    """The event logs from which the past of some table with a target is read."""
    found = set()
    for table in config.tables:
        sinks = [entry.sink for entry in table.to or () if entry.sink is not None]
        logs = [sink for sink in sinks if config.kind(sink) == "event_log" and _is_in_folder(config, sink)]
        if logs and any(config.kind(sink) not in NO_MIRRORS for sink in sinks):
            found.add(logs[0])
    return found


def _is_in_folder(config: View, sink: str) -> bool:
    path = text((config.sinks or {}).get(sink, {}), "path")
    return path is not None and "://" not in path
