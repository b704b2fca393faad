"""Files that exist completely or not at all, even after a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote


def write_json(path: Path, record: Mapping[str, object]) -> None:
    """Replaces `path` by `record`, atomically. The file and its folder are on the disk on return."""
    make_folder(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(record, file, ensure_ascii=False, separators=(",", ":"))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Returns when writes to this file, or to the entries of this folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Creates this folder and its missing parents. Their names are on the disk on return."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync(folder.parent)


def sync_commit(table: Path, version: int) -> None:
    """Returns when a commit of a Delta table and its data files are on the disk (delta-rs does not sync them)."""
    log = table / "_delta_log"
    folders = {log}
    # The commit before is needed, too. It may have created the table, or another writer may not have synced it yet.
    for number in range(max(version - 1, 0), version + 1):
        entry = log / f"{number:020}.json"
        if not entry.exists():  # The log was cleaned up: a checkpoint replaces it.
            continue
        # str.splitlines would also split at line separators within values of statistics.
        for line in entry.read_bytes().split(b"\n"):
            added = json.loads(line).get("add") if line.strip() else None
            # A file of the commit before may be vacuumed already. Partition values are URL-encoded in paths.
            if added and (file := table / unquote(added["path"])).exists():
                sync(file)
                folders.add(file.parent)
        sync(entry)
    if version < 2:
        folders |= {table, *(folder for folder in table.parents if os.access(folder, os.R_OK))}
    for folder in folders:
        sync(folder)
