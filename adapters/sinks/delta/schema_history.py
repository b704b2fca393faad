"""The schema versions of a lane, one file each, named by number."""

from __future__ import annotations

import json

from replicator.domain.errors import DataLoss
from replicator.domain.schema_versions import SchemaVersion, from_json, to_json

from ...delta.folders import Folder


def read_versions(folder: Folder) -> list[SchemaVersion]:
    """All versions in `folder`, by number. Files from before there were versions are only for people, and are
    skipped."""
    texts = [folder.load(name) for name in folder.files() if name.removesuffix(".json").isdecimal()]
    try:
        found = [from_json(record) for record in map(json.loads, texts) if "number" in record]
    except (KeyError, TypeError, ValueError) as damaged:
        raise DataLoss(
            f"a file of {folder} is damaged, so the schemas of the lane are lost",
            next_step="Restore the folder, or remove it: the next schema that the lane reads then becomes its first.",
        ) from damaged
    return sorted(found, key=lambda version: version.number)


def write_version(folder: Folder, version: SchemaVersion) -> None:
    """Writes or overwrites the file of a version."""
    folder.put(f"{version.number}.json", to_json(version))
