"""The parts of a pipeline, for code and for a config file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PARTS: dict[str, Any] = {
    "sources": {"staff": {"format": "rows", "transport": "delta", "path": "./feed/employees"}},
    "sinks": {"lake": {"kind": "delta", "path": "./lake"}},
    "dead_letters": {"path": "./lake/_replicator/dead_letters"},
}
FLOW: dict[str, Any] = {"target": "lake.employees", "source": "staff.employees", "keys": ["id"]}


def write_config_file(folder: Path, **changed: Any) -> Path:
    """Writes `PARTS` and the changes as config file. JSON is YAML."""
    file = folder / "config" / "replicator.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"pipeline": "staff", **PARTS, **changed}, indent=1))
    return file
