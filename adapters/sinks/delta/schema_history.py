"""The schemas that a lane has met, one file each, by number: for the lane, for people and for later comparison."""

from __future__ import annotations

import json

from replicator.domain.errors import DataLoss
from replicator.domain.schema_versions import SchemaVersion, from_json, to_json

from ...delta.folders import Folder


def read_versions(folder: Folder) -> list[SchemaVersion]:
    """All of `folder`, by number. Files of before there were versions say what people can read, and are left out."""
    texts = [folder.load(name) for name in folder.files() if name.removesuffix(".json").isdecimal()]
    try:
        found = [from_json(record) for record in map(json.loads, texts) if "number" in record]
    except (KeyError, TypeError, ValueError) as damaged:
        raise DataLoss(
            f"a file of {folder} is damaged, and with it what the lane knows of its schema",
            next_step="Restore the folder, or remove it: the lane then takes the schema that it meets next for its first.",
        ) from damaged
    return sorted(found, key=lambda version: version.number)


def write_version(folder: Folder, version: SchemaVersion) -> None:
    """Write the file of a version, or write it anew."""
    folder.put(f"{version.number}.json", to_json(version))
