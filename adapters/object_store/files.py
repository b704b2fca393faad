"""Files in an object store. An object is there whole or not at all, and what replaces it is another object."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, BinaryIO, Literal, NamedTuple, cast

import obstore
from obstore.exceptions import BaseError, PreconditionError
from obstore.store import S3Store

from replicator.domain.errors import Fatal, Retryable

from .errors import translate_store_error
from .options import Storage

BLOCK = 4 * 1024 * 1024
"""Bytes that one request asks for."""
STORES = 16


class ObjectStamp(NamedTuple):
    """What tells an object from the one that replaces it, and when it was written (nanoseconds)."""

    etag: str
    written: int


@lru_cache(STORES)
def open_store(bucket: str, storage: Storage) -> Any:
    """The client of a bucket: one per program, and one per executor."""
    return S3Store(bucket, **storage.to_obstore())


@dataclass(frozen=True, slots=True, order=True)
class StoredPath:
    """An object as it was when it was listed: what `pathlib.Path` is to a local file. Travels to executors with its keys."""

    bucket: str
    key: str
    storage: Storage = field(compare=False, repr=False)
    etag: str = field(default="", compare=False)
    size: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    @property
    def name(self) -> str:
        """Its name without its folders."""
        return self.key.rpartition("/")[2]

    @property
    def parts(self) -> tuple[str, ...]:
        """The bucket, folders and name."""
        return (f"s3://{self.bucket}/", *self.key.split("/"))

    def absolute(self) -> StoredPath:
        """It is already."""
        return self

    def open(self, mode: Literal["rb"] = "rb") -> BinaryIO:
        """Its bytes, asked for in blocks. Reading raises FileNotFoundError when it is gone, Retryable when it was replaced,
        and what `translate_store_error` says of a store that does not answer."""
        assert mode == "rb"  # noqa: S101 - the only one that pathlib's callers here use
        return cast(BinaryIO, io.BufferedReader(_ObjectReader(self), BLOCK))

    def read_stat(self) -> tuple[int, ObjectStamp]:
        """Its size and stamp as they are now; FileNotFoundError when it is gone."""
        with translate_errors(str(self)):
            found = obstore.head(open_store(self.bucket, self.storage), self.key)
        return found["size"], to_stamp(found)

    def exists(self) -> bool:
        """Whether it is there."""
        try:
            self.read_stat()
        except FileNotFoundError:
            return False
        return True

    def read_block(self, start: int, end: int) -> memoryview:
        """Its bytes from `start` to below `end`, which is above."""
        with translate_errors(str(self)):
            options: Any = {"range": (start, end), **({"if_match": self.etag} if self.etag else {})}
            return memoryview(obstore.get(open_store(self.bucket, self.storage), self.key, options=options).bytes())


class _ObjectReader(io.RawIOBase):
    """The bytes of an object, by range."""

    def __init__(self, path: StoredPath) -> None:
        super().__init__()
        self._path, self._at = path, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._path.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._path.size)
        if end <= self._at:
            return 0
        found = self._path.read_block(self._at, end)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


def to_stamp(found: Any) -> ObjectStamp:
    """Of what obstore says of an object."""
    written: datetime = found["last_modified"]
    return ObjectStamp(found["e_tag"] or "", int(written.timestamp() * 1e9))


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Raises the program's own errors, but for FileNotFoundError of an object."""
    try:
        yield
    except PreconditionError as error:
        raise Retryable(f"{what} was replaced while it was read") from error
    except (BaseError, FileNotFoundError) as error:
        problem = translate_store_error(str(error), what)
        if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in str(error):
            raise
        raise problem or Fatal(f"{what} cannot be used: {type(error).__name__}") from error
