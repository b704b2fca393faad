"""Files of sources in an object store."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store
from servers.object_store import BUCKET, ObjectStore

from adapters.object_store.options import Storage

FOLDERS = count(1)


@dataclass
class StoredFiles:
    """A folder in the object store of the tests."""

    store: ObjectStore

    def __post_init__(self) -> None:
        self.folder = f"bucket/{next(FOLDERS)}"
        self.client = S3Store(BUCKET, **Storage.model_validate(self.store.storage).to_obstore())

    @property
    def options(self) -> dict[str, Any]:
        """Options of a source."""
        return {"path": f"s3://{BUCKET}/{self.folder}", "storage": self.store.storage}

    def put(self, name: str, text: str | bytes) -> None:
        """Creates or replaces an object."""
        obstore.put(self.client, f"{self.folder}/{name}", text.encode() if isinstance(text, str) else text)

    def drop(self, name: str) -> None:
        obstore.delete(self.client, f"{self.folder}/{name}")

    def move(self, folder: Path) -> None:
        """Moves every file of a local folder into the store."""
        for file in sorted(p for p in folder.rglob("*") if p.is_file()):
            self.put(file.relative_to(folder).as_posix(), file.read_bytes())
            file.unlink()
