"""The progress of a comparison that was interrupted."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import pyarrow as pa

from replicator.application.durable import make_folder, replace_file
from replicator.domain.errors import EnvironmentProblem
from replicator.domain.position import Position
from replicator.ports.comparison import TargetSnapshot
from replicator.ports.frames import Lane

from .diff_runs import get_progress_path

NOTES = b"replicator"
LONGEST = timedelta(days=1)
"""A comparison is not resumed after this time. The log would have to hold all changes since its start."""


@dataclass(frozen=True)
class UnfinishedDiff:
    """Rows up to a key were compared.

    - `before`: the end of the stream before the first snapshot. Keys with later changes have to be compared again.
    - `upto`: the last compared value of the first key column; None if there is none. `rows`: the number of compared rows.
    - `keys`: the keys of the rows that differed, with the source's names.
    - `point`: that of the first snapshot, for people. `begun`: the time of it.
    - `compared`: a hash of what is compared: the target, its columns, and the rules of the lane.
    """

    before: Position
    upto: int | None
    rows: int
    keys: pa.Table
    point: str
    begun: datetime
    compared: str


def hash_compared(lane: Lane, target: TargetSnapshot) -> str:
    """See `UnfinishedDiff.compared`."""
    return hashlib.sha256(repr((target.identity, target.columns, lane)).encode()).hexdigest()


class DiffProgressFile:
    """Keeps the progress of one lane. Only keys are stored, no other values.

    A context manager. If two comparisons of a lane run at once, only the first keeps its progress.
    """

    def __init__(self, folder: Path, lane: Lane) -> None:
        self._path = get_progress_path(folder, lane.id)
        self._lock: int | None = None

    def __enter__(self) -> Self:
        try:
            make_folder(self._path.parent)
            handle = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:  # The folder cannot be written. Who stores the result says so.
            return self
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
        else:
            self._lock = handle
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self) -> UnfinishedDiff | None:
        """The progress; None if the last comparison has ended, or was begun too long ago."""
        if self._lock is None:
            return None
        try:
            keys = pa.ipc.open_file(self._path).read_all()
            said = json.loads(keys.schema.metadata[NOTES])
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as error:
            raise EnvironmentProblem(
                f"{self._path} cannot be read ({type(error).__name__}).", next_step="Remove it, and repeat the command."
            ) from error
        begun = datetime.fromisoformat(said["begun"])
        if datetime.now(UTC) - begun > LONGEST:
            return None
        before = Position.from_json(said["before"])
        return UnfinishedDiff(before, said["upto"], said["rows"], keys, said["point"], begun, said["compared"])

    def write(self, progress: UnfinishedDiff) -> None:
        """Replace the progress."""
        if self._lock is None:
            return
        said = {
            "before": progress.before.to_json(),
            "upto": progress.upto,
            "rows": progress.rows,
            "point": progress.point,
            "begun": progress.begun.isoformat(),
            "compared": progress.compared,
        }
        keys = progress.keys.replace_schema_metadata({NOTES: json.dumps(said)})
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_file(buffer, keys.schema) as writer:
            writer.write_table(keys)
        replace_file(self._path, buffer.getvalue().to_pybytes(), 0o600)

    def remove(self) -> None:
        """The comparison has ended."""
        if self._lock is not None:
            self._path.unlink(missing_ok=True)
