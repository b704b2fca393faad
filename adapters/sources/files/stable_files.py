"""When a file is complete, and what its name must be at least."""

from __future__ import annotations

from collections.abc import Callable

from replicator.domain.errors import ConfigProblem

from ...object_store.file_ages import seconds_until_stable
from ...object_store.files import StoredPath
from .file_list import ArchiveFile, FilePath

SETTLED_SECONDS = 10.0
"""A file is complete once nobody has written to it for so long: who writes files once never writes to one again."""


def seconds_until_complete(file: ArchiveFile, seconds: float | None, *, since_copied: bool = False) -> float:
    """Seconds from now until the file counts as complete; 0 or less when it does. `seconds`: how long nobody must have
    written to it; None: `SETTLED_SECONDS`, and no time at all for an object, which is there whole or not at all.
    `since_copied`: nor must it have come here since, by a copy that keeps its time, or under another name."""
    if seconds is None:
        seconds = 0.0 if isinstance(file.path, StoredPath) else SETTLED_SECONDS
    written = max(file.stamp[1], file.changed if since_copied else 0)
    return seconds_until_stable(file.path, written / 1e9, file.size, seconds) if seconds else 0.0


def refuse_name(file: ArchiveFile, table_of: Callable[[FilePath], str]) -> None:
    """Raise ConfigProblem for a file whose table, as `table_of` says it, has no name that is text."""
    try:
        table_of(file.path).encode()
    except UnicodeEncodeError:
        raise ConfigProblem(
            f"{str(file.path)!a} has a name that is not UTF-8", next_step="Rename it, or move it to another place."
        ) from None
