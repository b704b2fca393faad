"""How long nobody has written to files, on a machine whose clock may be another one than theirs."""

from __future__ import annotations

import time
from pathlib import Path

from .files import StoredPath

MOST = 100_000
"""Files that are kept at most: one that is removed while its time is ahead would stay for ever."""
_ahead: dict[tuple[Path | StoredPath, float], tuple[tuple[float, int], float]] = {}
"""Files whose times were ahead of this machine's clock, for each time that was asked for: time and size, and when they were
first seen so."""


def seconds_until_stable(path: Path | StoredPath, written: float, size: int, settle: float) -> float:
    """Seconds from now until nobody has written to the file for `settle` seconds; 0 or less when nobody has. `written`: its
    time (Unix). A time ahead of ours is of another clock, and may be so by hours: such a file counts from when this process
    has first seen it with this time and size."""
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
