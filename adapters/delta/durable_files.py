"""Files that are whole or not there, whatever is killed when."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote


def write_json(path: Path, record: Mapping[str, object]) -> None:
    """Replace `path` by `record`, atomically; on return the file and its folder are on the disk."""
    make_folder(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(record, file, ensure_ascii=False, separators=(",", ":"))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Return when what was written to this file, or to the entries of this folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Make this folder, and those above it that are missing; on return their names are on the disk."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync(folder.parent)


def sync_commit(table: Path, version: int) -> None:
    """Return when a commit of a Delta table and the data files it added are on the disk (delta-rs does not ask for it)."""
    log = table / "_delta_log"
    folders = {log}
    # The one before is needed too. It may have made the table, or be another writer's that has not come to this point.
    for number in range(max(version - 1, 0), version + 1):
        entry = log / f"{number:020}.json"
        if not entry.exists():  # The log was cleaned up: a checkpoint stands for it.
            continue
        # Not by str.splitlines: values in statistics may hold what it takes for the end of a line.
        for line in entry.read_bytes().split(b"\n"):
            added = json.loads(line).get("add") if line.strip() else None
            # A file of the commit before may have been replaced and vacuumed. A partition's value is in a path as in a URL.
            if added and (file := table / unquote(added["path"])).exists():
                sync(file)
                folders.add(file.parent)
        sync(entry)
    if version < 2:
        folders |= {table, *(folder for folder in table.parents if os.access(folder, os.R_OK))}
    for folder in folders:
        sync(folder)
