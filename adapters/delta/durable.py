"""Files that are whole or not there, whatever is killed when."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote


def write_json(path: Path, record: Mapping[str, object]) -> None:
    """Replace `path` by `record`, atomically; on return the file and its folder are on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
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


def sync_commit(table: Path, version: int) -> None:
    """Return when a commit of a Delta table and the data files it added are on the disk (delta-rs does not ask for it)."""
    log = table / "_delta_log"
    entry = log / f"{version:020}.json"
    folders = set()
    # Not by str.splitlines: values in statistics may hold what it takes for the end of a line.
    for line in entry.read_bytes().split(b"\n"):
        added = json.loads(line).get("add") if line.strip() else None
        if added:
            file = table / unquote(added["path"])  # A partition's value is in it as in a URL.
            sync(file)
            folders.add(file.parent)
    for folder in folders:
        sync(folder)
    sync(entry)
    sync(log)
