"""Checks of files: complete, and with a valid name."""

from __future__ import annotations

from collections.abc import Callable

from replicator.domain.errors import ConfigProblem

from ...object_store.file_ages import seconds_until_stable
from ...object_store.files import StoredPath
from .file_list import ArchiveFile, FilePath

SETTLED_SECONDS = 10.0
"""Seconds without a write after which a file is complete. Writers of immutable files never write to it again."""


def seconds_until_complete(file: ArchiveFile, seconds: float | None, *, since_copied: bool = False) -> float:
    """Seconds until the file counts as complete; 0 or less if it does. `seconds`: the required time without a write; None
    means `SETTLED_SECONDS`, or 0 for an object, which appears whole. `since_copied`: the time counts from when it was
    copied or renamed, if that is later."""
    if seconds is None:
        seconds = 0.0 if isinstance(file.path, StoredPath) else SETTLED_SECONDS
    written = max(file.stamp[1], file.changed if since_copied else 0)
    return seconds_until_stable(file.path, written / 1e9, file.size, seconds) if seconds else 0.0


def refuse_name(file: ArchiveFile, table_of: Callable[[FilePath], str]) -> None:
    """Raise ConfigProblem for a file whose table name, from `table_of`, is not valid text."""
    try:
        table_of(file.path).encode()
    except UnicodeEncodeError:
        raise ConfigProblem(
            f"{str(file.path)!a} has a name that is not UTF-8", next_step="Rename it, or move it to another place."
        ) from None
