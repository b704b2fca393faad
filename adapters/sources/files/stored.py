"""Where files are looked for in an object store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import obstore

from ...delta.storage import SCHEMES, Storage, split_url
from ...delta.stored_files import ObjectStamp, StoredPath, asking, stamp_of, store_of


@dataclass(frozen=True, slots=True)
class StoredFolder:
    """Where files are looked for: the objects under a key, or the one of that key."""

    bucket: str
    key: str
    storage: Storage = field(repr=False)

    @classmethod
    def at(cls, url: str, storage: Storage | None) -> StoredFolder:
        """What lies at `s3://BUCKET/KEY`; ConfigProblem for the URL of another kind of store."""
        return cls(*split_url(url), storage or Storage())

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}".rstrip("/")

    def objects(self, *, deep: bool) -> Iterator[tuple[StoredPath, str, int, ObjectStamp]]:
        """Every object with its name below the folder, its size and its stamp; without `deep` those directly in it."""
        store, prefix = store_of(self.bucket, self.storage), f"{self.key}/" if self.key else None
        with asking(str(self)):
            found = [one for page in obstore.list(store, prefix) for one in page]
            if not found and self.key:
                found = self._itself(store)
        for one in found:
            key = str(one["path"])
            label = key.removeprefix(f"{self.key}/" if self.key else "") if key != self.key else key.rpartition("/")[2]
            if deep or "/" not in label:
                stamp = stamp_of(one)
                yield StoredPath(self.bucket, key, self.storage, stamp.etag, one["size"]), label, one["size"], stamp

    def _itself(self, store: Any) -> list[Any]:
        try:
            return [obstore.head(store, self.key)]
        except FileNotFoundError:
            return []


def is_stored(path: str) -> bool:
    """True for the URL of an object store."""
    return path.partition("://")[0] in SCHEMES and "://" in path
