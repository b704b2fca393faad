"""How long ago files were last written to."""

from __future__ import annotations

import time
from pathlib import Path

from .stored_files import StoredPath

_ahead: dict[Path | StoredPath, tuple[tuple[float, int], float]] = {}
"""Files whose times are ahead of this machine's clock: time and size, and when they were first seen so."""


def age_of(path: Path | StoredPath, written: float, size: int) -> float:
    """Seconds since the file was last written to, whose time is `written` (Unix) and whose size is `size`. A time ahead of
    ours is of another clock, and may be so by hours: then since this process has first seen it with this time and size."""
    now = time.time()
    if written <= now:
        return now - written
    looked, since = _ahead.get(path, (None, 0.0))
    if looked != (written, size):
        _ahead[path], since = ((written, size), time.monotonic()), time.monotonic()
    return time.monotonic() - since
