"""When files are to be looked for: as the operating system tells of a change, and from time to time."""

from __future__ import annotations

import logging
import time
from glob import has_magic
from pathlib import Path

from watchfiles._rust_notify import RustNotify

from replicator.ports.frames import Stop

from .file_list import Place, fixed_part

log = logging.getLogger(__name__)
EVERY = 10.0
"""Seconds after which files are listed though nothing told of a change: object stores never do, nor do folders of other
machines."""
STEP_MS, GATHER_MS = 50, 200
"""Changes that come within a step of each other are one, for as long as `GATHER_MS`."""
AFTER = 0.5
"""Seconds after a change until files are listed once more: nobody is told what is written into a folder that is new."""


class FilePoller:
    """Watches `place`, with the folders in it where `deep` or where it is a glob. Begins when it is made: what comes later
    is not missed. `every`: so many seconds after the last look there is another one in any case; 0 is always."""

    def __init__(self, place: Place, *, deep: bool, every: float | None = None) -> None:
        self._every = EVERY if every is None else every
        self._due = time.monotonic() + self._every
        self._folder = _find_folder(place) if isinstance(place, str) else None
        self._deep = deep or (isinstance(place, str) and has_magic(place))
        self._watched: tuple[RustNotify, int] | None = None
        self._renew()

    def wait(self, stop: Stop, seconds: float, *, due_in: float = float("inf")) -> bool:
        """Wait until files are to be listed, at most so many seconds, or until the end is asked for. Whether they are to be.
        `due_in`: seconds after which they are, whatever happens."""
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
        """Let go of the folder."""
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
            # The folder itself is gone or another one, maybe of the same number.
            self.close()
        return True

    def _renew(self) -> None:
        """Watch the folder that is there now: it may have been made anew."""
        if self._folder is None:
            return
        try:
            inode = self._folder.stat().st_ino
            if self._watched is None or self._watched[1] != inode:
                self.close()
                notify = RustNotify([str(self._folder)], False, False, 0, self._deep, True)
                self._watched = (notify, inode)
        except OSError as error:
            # Listing says what is wrong with the folder; here it is only that nothing tells of changes.
            self.close()
            log.warning("%s is not watched (%s): it is looked through every %g s.", self._folder, error, self._every)


def _find_folder(path: str) -> Path:
    if Path(path).exists():
        return Path(path) if Path(path).is_dir() else Path(path).parent
    return fixed_part(Path(path)) if has_magic(path) else Path(path)
