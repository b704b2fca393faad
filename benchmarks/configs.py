"""Configurations of the measured daemon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from .topic import TOPIC

LAKE, POSTGRES, LOG = "lake", "target", "log"


def write_config(
    folder: Path,
    sinks: Sequence[str],
    bootstrap: str,
    dsn: str,
    *,
    topic: str = TOPIC,
    table: str = "public.rows",
    engine: str = "local",
    batch: int | None = None,
    spark: Mapping[str, str] | None = None,
) -> Path:
    """A config in `folder` that sends `table` to the named sinks; everything it writes lies in `folder` too. Every bound is
    the default, so that what is measured is what a user gets."""
    kinds: Mapping[str, dict[str, Any]] = {
        LAKE: {"kind": "delta", "path": str(folder / "lake")},
        POSTGRES: {"kind": "postgres", "dsn": dsn, "schema": "public"},
        LOG: {"kind": "event_log", "path": str(folder / "log")},
    }
    source: dict[str, Any] = {
        "format": "debezium_json",
        "transport": "kafka",
        "bootstrap_servers": bootstrap,
        "topics": [topic],
        "group_id": f"bench-{folder.name}",
    }
    if batch is not None:
        source["max_records_per_trigger"] = batch
    document = {
        "pipeline": "bench",
        "engine": engine,
        "spark": {"spark.ui.enabled": "false", **(spark or {})},
        "sources": {"bench": source},
        "sinks": {name: kinds[name] for name in sinks},
        "dead_letters": {"path": str(folder / "dead_letters")},
        "state": str(folder / "state"),
        "http": {"address": "127.0.0.1:0"},
        "tables": [{"match": table, "source": "bench", "to": [{"sink": name} for name in sinks]}],
    }
    path = folder / "config.yaml"
    with path.open("w") as out:
        YAML().dump(document, out)
    return path
