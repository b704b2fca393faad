"""Files in an object store. An object is complete or absent. A replacement is a different object."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, cast

import obstore
from obstore.exceptions import BaseError, PreconditionError
from obstore.store import S3Store

from replicator.domain.errors import Fatal, Retryable

from .options import Storage, translate_store_error

BLOCK = 4 * 1024 * 1024
"""Bytes of one read request."""
STORES = 16


class ObjectStamp(NamedTuple):
    """Identity of an object, different from its replacement's, and its write time (nanoseconds)."""

    etag: str
    written: int


@lru_cache(STORES)
def open_store(bucket: str, storage: Storage) -> Any:
    """The client of a bucket: one per process."""
    return S3Store(bucket, **storage.to_obstore())


@dataclass(frozen=True, slots=True, order=True)
class StoredPath:
    """The path of an object, like `pathlib.Path`, with its state when it was listed. Executors get it with credentials."""

    bucket: str
    key: str
    storage: Storage = field(compare=False, repr=False)
    etag: str = field(default="", compare=False)
    size: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    @property
    def name(self) -> str:
        """The name without folders."""
        return self.key.rpartition("/")[2]

    @property
    def parts(self) -> tuple[str, ...]:
        """Bucket, folders and name."""
        return (f"s3://{self.bucket}/", *self.key.split("/"))

    def absolute(self) -> StoredPath:
        """The path itself."""
        return self

    def open(self, mode: Literal["rb"] = "rb") -> BinaryIO:
        """The content, read in blocks. Reading raises FileNotFoundError if the object is gone, Retryable if it was
        replaced, and the errors of `translate_store_error`."""
        assert mode == "rb"  # noqa: S101 - the only one that pathlib's callers here use
        return cast(BinaryIO, io.BufferedReader(_ObjectReader(self), BLOCK))

    def read_stat(self) -> tuple[int, ObjectStamp]:
        """The current size and stamp. FileNotFoundError if the object is gone."""
        with translate_errors(str(self)):
            metadata = obstore.head(open_store(self.bucket, self.storage), self.key)
        return metadata["size"], to_stamp(metadata)

    def exists(self) -> bool:
        """True if the object exists."""
        try:
            self.read_stat()
        except FileNotFoundError:
            return False
        return True

    def read_block(self, start: int, end: int) -> memoryview:
        """The bytes from `start` up to `end`, without `end`. `end` must be greater than `start`."""
        with translate_errors(str(self)):
            options: Any = {"range": (start, end), **({"if_match": self.etag} if self.etag else {})}
            return memoryview(obstore.get(open_store(self.bucket, self.storage), self.key, options=options).bytes())


class _ObjectReader(io.RawIOBase):
    """Reads an object by ranges."""

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
        block = self._path.read_block(self._at, end)
        buffer[: len(block)] = block
        self._at += len(block)
        return len(block)


def to_stamp(metadata: Any) -> ObjectStamp:
    """The stamp from obstore's metadata of an object."""
    written: datetime = metadata["last_modified"]
    return ObjectStamp(metadata["e_tag"] or "", int(written.timestamp() * 1e9))


@contextmanager
def translate_errors(location: str) -> Iterator[None]:
    """Raise the program's own errors, except FileNotFoundError of an object."""
    try:
        yield
    except PreconditionError as error:
        raise Retryable(f"{location} was replaced while it was read") from error
    except (BaseError, FileNotFoundError) as error:
        problem = translate_store_error(str(error), location)
        if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in str(error):
            raise
        raise problem or Fatal(f"{location} cannot be used: {type(error).__name__}") from error


# The time since the last write to a file, even if its timestamps come from another clock.

MOST = 100_000
"""Maximum entries of `_ahead`: a file that is deleted while its time is ahead would stay for ever."""
_ahead: dict[tuple[Path | StoredPath, float], tuple[tuple[float, int], float]] = {}
"""Files with times ahead of this machine's clock, by path and `settle`: time and size, and when both were first seen."""


def seconds_until_stable(path: Path | StoredPath, written: float, size: int, settle: float) -> float:
    """Seconds until the file has had no write for `settle` seconds; 0 or less if it is already stable. `written`: the
    file's time (Unix). A time ahead of ours comes from another clock, perhaps by hours. Such a file counts from when this
    process first saw it with this time and size."""
    left, key, stamp = written + settle - time.time(), (path, settle), (written, size)
    if left <= 0:
        _ahead.pop(key, None)
        return left
    seen, since = _ahead.get(key, (None, 0.0))
    if left > settle and seen != stamp:
        if len(_ahead) >= MOST:
            del _ahead[next(iter(_ahead))]
        seen, since = _ahead[key] = stamp, time.monotonic()
    return min(left, since + settle - time.monotonic()) if seen == stamp else left
