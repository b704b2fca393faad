"""Folders of an object store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import obstore

from ...object_store.files import ObjectStamp, StoredPath, open_store, to_stamp, translate_errors
from ...object_store.options import SCHEMES, Storage, split_url


@dataclass(frozen=True, slots=True)
class ObjectFolder:
    """The objects below a key, or the object with that key."""

    bucket: str
    key: str
    storage: Storage = field(repr=False)

    @classmethod
    def from_url(cls, url: str, storage: Storage | None) -> ObjectFolder:
        """The folder at `s3://BUCKET/KEY`. Raises ConfigProblem for the URL of another kind of store."""
        return cls(*split_url(url), storage or Storage())

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}".rstrip("/")

    def list_objects(self, *, deep: bool) -> Iterator[tuple[StoredPath, str, int, ObjectStamp]]:
        """Every object with its name below the folder, size and stamp; without `deep` only objects directly in it."""
        store, prefix = open_store(self.bucket, self.storage), f"{self.key}/" if self.key else None
        with translate_errors(str(self)):
            found = [one for page in obstore.list(store, prefix) for one in page]
            if not found and self.key:
                found = self._find_object(store)
        for one in found:
            key = str(one["path"])
            label = key.removeprefix(f"{self.key}/" if self.key else "") if key != self.key else key.rpartition("/")[2]
            if deep or "/" not in label:
                stamp = to_stamp(one)
                yield StoredPath(self.bucket, key, self.storage, stamp.etag, one["size"]), label, one["size"], stamp

    def _find_object(self, store: Any) -> list[Any]:
        try:
            return [obstore.head(store, self.key)]
        except FileNotFoundError:
            return []


def is_object_url(path: str) -> bool:
    """True for the URL of an object store."""
    return path.partition("://")[0] in SCHEMES and "://" in path
