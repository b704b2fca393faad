"""Values of missing keys that depend on other keys or on the location of the config."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .config_view import to_mapping

DEAD_LETTERS_FOLDER = "_replicator/dead_letters"
DEFAULT_NAME = "pipeline"


def fill_defaults(data: dict[str, Any], root: Path) -> None:
    """Adds `pipeline`, `dead_letters` and the group of each Kafka source to the data of a config below the folder `root`."""
    data.setdefault("pipeline", _make_name(root))
    data.setdefault("dead_letters", _place_in_sink(to_mapping(data.get("sinks"))) or _place_in_state(data))
    for source in to_mapping(data.get("sources")).values():
        if isinstance(source, dict) and source.get("transport") == "kafka":
            source.setdefault("group_id", f"replicator-{data['pipeline']}")


def _make_name(root: Path) -> str:
    """The folder's name, as far as a pipeline can be called so."""
    bare = re.sub(r"[^A-Za-z0-9_-]+", "-", root.name).strip("-")
    return (bare if bare[:1].isalpha() else f"{DEFAULT_NAME}-{bare}".rstrip("-"))[:63]


def _place_in_sink(sinks: dict[str, Any]) -> dict[str, Any] | None:
    """In the folder of the first Delta sink on a disk, otherwise in the first PostgreSQL sink; None without either."""
    known = [sink for sink in sinks.values() if isinstance(sink, dict)]
    paths = [sink.get("path") for sink in known if sink.get("kind") == "delta"]
    lake = next((path for path in paths if isinstance(path, str) and "://" not in path), None)
    if lake is not None:
        return {"path": f"{lake.rstrip('/')}/{DEAD_LETTERS_FOLDER}"}
    dsn = next((sink["dsn"] for sink in known if sink.get("kind") == "postgres" and sink.get("dsn")), None)
    return None if dsn is None else {"dsn": dsn}


def _place_in_state(data: dict[str, Any]) -> dict[str, Any]:
    return {"path": f"{data.get('state') or './state'}/{data['pipeline']}/dead_letters"}
