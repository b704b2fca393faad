"""Reader for the logs of several servers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

POLL_SECONDS = 0.2


def read_logs(files: Mapping[str, Path], *, last: int, follow: bool) -> Iterator[str]:
    """The last lines of every log as `name | line`; with `follow`, then all new lines for ever.

    New and rotated logs are read when they appear.
    """
    tails = [_LogTail(name, path, last) for name, path in files.items()]
    while True:
        for tail in tails:
            yield from tail.new_lines()
        if not follow:
            return
        time.sleep(POLL_SECONDS)


class _LogTail:
    """A log and its read position."""

    def __init__(self, name: str, path: Path, last: int) -> None:
        self._name, self._path, self._last = name, path, last
        self._file: BinaryIO | None = None
        self._rest = b""

    def new_lines(self) -> Iterator[str]:
        """The complete lines since the last call; at the first call, the last ones."""
        first = self._file is None
        if not self._is_opened() or self._file is None:
            return
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines[-self._last :] if first else lines:
            yield f"{self._name} | {line.decode(errors='replace')}"

    def _is_opened(self) -> bool:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return self._file is not None
        if self._file is None or found.st_size < self._file.tell():
            self._file, self._rest = self._path.open("rb"), b""
        return True
