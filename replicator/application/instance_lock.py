"""The instance lock: one running instance per pipeline and state folder."""

from __future__ import annotations

from pathlib import Path

from replicator.domain.errors import EnvironmentProblem, Fenced
from replicator.local_files import FileLock, FileLocked, make_folder


class InstanceLock(FileLock):
    """A lock on `<folder>/lock`. Not locked before `acquire`.

    A second instance fails at once, before it has written anything. Instances with different state folders are
    detected by the targets, at their next commit.
    """

    def __init__(self, folder: Path, pipeline: str) -> None:
        super().__init__(folder / "lock")
        self._folder, self._pipeline = folder, pipeline

    def acquire(self) -> None:
        """Lock the folder. `Fenced`, with the other process id, if another instance has locked it."""
        try:
            make_folder(self._folder)
            super().acquire()
        except FileLocked as taken:
            raise Fenced(
                f"Another instance of pipeline {self._pipeline} runs (process {taken.holder}).",
                next_step="Stop it first, or give this one another `pipeline` name and other targets.",
            ) from taken
        except OSError as error:
            raise EnvironmentProblem(
                f"{self._folder / 'lock'} cannot be written ({error.strerror}).",
                next_step="Make the folder named by `state` writable.",
            ) from error
