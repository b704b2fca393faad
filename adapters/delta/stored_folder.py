"""Folders of a lake in an object store.

There are no locks, so two rules separate writers:

- A number of a lane belongs to the first writer that creates its position file. The file of a failed attempt
  stays, and the next attempt uses the next number.
- An instance is fenced when it finds a commit of another instance for a lane that it holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from replicator.domain.errors import Fatal, Fenced

from ..object_store.files import StoredPath, to_stamp
from ..object_store.options import Storage, split_url, translate_store_error
from .folders import LaneLock, Record


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """A bucket and its client."""

    name: str
    store: Any = field(repr=False)
    storage: Storage


@dataclass(frozen=True, slots=True)
class StoredFolder:
    """A `Folder` in an object store."""

    bucket: Bucket
    key: str

    @classmethod
    def from_path(cls, path: str, storage: Storage) -> StoredFolder:
        """The folder at `s3://BUCKET/KEY`. Raises ConfigProblem for the URL of another kind of store."""
        name, key = split_url(path)
        return cls(Bucket(name, S3Store(name, **storage.to_obstore()), storage), key)

    def __str__(self) -> str:
        return self.uri

    @property
    def name(self) -> str:
        """See `Folder.name`. For a whole bucket, the bucket's name."""
        return self.key.rpartition("/")[2] or self.bucket.name

    @property
    def parent(self) -> StoredFolder:
        return StoredFolder(self.bucket, self.key.rpartition("/")[0])

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket.name}/{self.key}".rstrip("/")

    @property
    def options(self) -> dict[str, str]:
        return self.bucket.storage.to_delta_rs()

    def __truediv__(self, name: str, /) -> StoredFolder:
        return StoredFolder(self.bucket, f"{self.key}/{name}".lstrip("/"))

    def has_table(self) -> bool:
        """See `Folder.has_table`: true when there is a commit or a checkpoint."""
        with _translate_errors(self):
            log = self / "_delta_log"
            return any(page for page in obstore.list(self.bucket.store, f"{log.key}/", chunk_size=1))

    def folders(self) -> list[StoredFolder]:
        with _translate_errors(self):
            prefixes = obstore.list_with_delimiter(self.bucket.store, self.key or None)["common_prefixes"]
        return [StoredFolder(self.bucket, key) for key in sorted(prefixes)]

    def tables(self) -> list[StoredFolder]:
        return [folder for folder in self.folders() if folder.has_table()]

    def files(self) -> list[str]:
        with _translate_errors(self):
            objects = obstore.list_with_delimiter(self.bucket.store, self.key or None)["objects"]
        return [str(file["path"]).rpartition("/")[2] for file in objects]

    def has_file(self, file: str) -> bool:
        try:
            with _translate_errors(self):
                obstore.head(self.bucket.store, (self / file).key)
        except FileNotFoundError:
            return False
        return True

    def load(self, file: str) -> str:
        with _translate_errors(self):
            return bytes(obstore.get(self.bucket.store, (self / file).key).bytes()).decode()

    def stamp(self, file: str) -> object:
        try:
            with _translate_errors(self):
                return to_stamp(obstore.head(self.bucket.store, (self / file).key))
        except FileNotFoundError:
            return None

    def locate(self, path: str, size: int | None) -> StoredPath:
        bucket, key = split_url(path) if "://" in path else (self.bucket.name, path)
        location = StoredPath(bucket, unquote(key) if "://" in path else (self / unquote(path)).key, self.bucket.storage)
        return replace(location, size=location.read_stat()[0] if size is None else size)

    def put(self, file: str, record: Record) -> None:
        with _translate_errors(self, writes=True):
            obstore.put(self.bucket.store, (self / file).key, _to_json(record), mode="overwrite")

    def claim(self, file: str, record: Record) -> bool:
        text, key = _to_json(record), (self / file).key
        with _translate_errors(self, writes=True):
            try:
                obstore.put(self.bucket.store, key, text, mode="create")
            except AlreadyExistsError:
                # A repeated request finds the file of its first try.
                return bytes(obstore.get(self.bucket.store, key).bytes()) == text
        return True

    def drop(self, file: str) -> None:
        with _translate_errors(self):
            obstore.delete(self.bucket.store, (self / file).key)

    def clear(self) -> None:
        with _translate_errors(self):
            for page in obstore.list(self.bucket.store, f"{self.key}/"):
                obstore.delete(self.bucket.store, [file["path"] for file in page])

    def is_link_outside(self, _: Any, /) -> bool:
        """See `Folder.is_link_outside`: there are no links."""
        return False

    def lock(self, lane: str) -> LaneLock:
        return OptimisticLaneLock(lane)


class OptimisticLaneLock:
    """A `LaneLock` without locks: a commit that this instance did not make shows that there is another instance."""

    def __init__(self, lane: str) -> None:
        self._lane = lane
        self._last: int | None = None
        self._doubted: int | None = None

    def expect(self, commit_number: int) -> None:
        if self._last is None or commit_number == self._doubted:
            self._last = commit_number
        if commit_number != self._last:
            raise Fenced(
                f"another instance has written lane {self._lane}: its version is {commit_number}, not {self._last}",
                next_step="Stop one of the two instances.",
            )

    def note_commit(self, commit_number: int) -> None:
        self._last = commit_number

    def doubt(self, commit_number: int) -> None:
        self._doubted = commit_number

    def release(self) -> None:
        self._last = None


def _to_json(record: Record) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()


@contextmanager
def _translate_errors(folder: StoredFolder, *, writes: bool = False) -> Iterator[None]:
    """Raises errors of this program, except FileNotFoundError for a file that is read."""
    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        problem = translate_store_error(str(error), folder.uri)
        if isinstance(error, FileNotFoundError) and not writes and not (problem and "NoSuchBucket" in str(error)):
            raise
        raise problem or Fatal(f"{folder.uri} cannot be used: {type(error).__name__}") from error
