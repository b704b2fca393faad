"""The time since the last write to a file, even if its timestamps come from another clock."""

from __future__ import annotations

import time
from pathlib import Path

from .files import StoredPath

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
