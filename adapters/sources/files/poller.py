"""Polling for new files: notifications of the operating system, and regular listing."""

from __future__ import annotations

import logging
import time
from glob import has_magic
from pathlib import Path

from watchfiles._rust_notify import RustNotify

from replicator.ports.frames import Stop

from .file_list import Place, fixed_part

log = logging.getLogger(__name__)
STEP_MS, GATHER_MS = 50, 200
"""Changes within a step of each other are one notification, for at most `GATHER_MS`."""
AFTER = 0.5
"""Seconds after a change until files are listed again: writes into a new folder cause no notification."""


class FilePoller:
    """Watches `place`, including subfolders for `deep` and globs. Starts on creation, so no later change is missed.
    `every`: the longest time between two listings in seconds, as in object stores and folders of other machines; 0 lists
    always."""

    def __init__(self, place: Place, *, deep: bool, every: float) -> None:
        self._every = every
        self._due = time.monotonic() + self._every
        self._folder = _find_folder(place) if isinstance(place, str) else None
        self._deep = deep or (isinstance(place, str) and has_magic(place))
        self._watched: tuple[RustNotify, int] | None = None
        self._renew()

    def wait(self, stop: Stop, seconds: float, *, due_in: float = float("inf")) -> bool:
        """Wait until files must be listed, for at most `seconds`, or until `stop`. Returns True if they must be.
        `due_in`: seconds after which they must be in any case."""
        now = time.monotonic()
        self._due = min(self._due, now + due_in)
        if self._has_changed(stop, max(0.0, min(seconds, self._due - now))):
            self._due = time.monotonic() + min(AFTER, self._every)
            return True
        if stop.is_set() or time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + self._every
        self._renew()
        return True

    def close(self) -> None:
        """Stop watching the folder."""
        if self._watched is not None:
            self._watched[0].close()
            self._watched = None

    def _has_changed(self, stop: Stop, seconds: float) -> bool:
        if self._watched is None:
            stop.wait(seconds)
            return False
        found = self._watched[0].watch(GATHER_MS, STEP_MS, max(1, int(seconds * 1000)), stop)
        if found == "signal":
            raise KeyboardInterrupt
        if isinstance(found, str):
            return False
        if any(path == str(self._folder) for _, path in found):
            # The folder was removed or replaced, maybe by one with the same inode number.
            self.close()
        return True

    def _renew(self) -> None:
        """Watch the current folder, which may have been replaced."""
        if self._folder is None:
            return
        try:
            inode = self._folder.stat().st_ino
            if self._watched is None or self._watched[1] != inode:
                self.close()
                notify = RustNotify([str(self._folder)], False, False, 0, self._deep, True)
                self._watched = (notify, inode)
        except OSError as error:
            # Listing reports errors of the folder; here they only prevent notifications.
            self.close()
            log.warning("%s is not watched (%s): it is looked through every %g s.", self._folder, error, self._every)


def _find_folder(path: str) -> Path:
    if Path(path).exists():
        return Path(path) if Path(path).is_dir() else Path(path).parent
    return fixed_part(Path(path)) if has_magic(path) else Path(path)
