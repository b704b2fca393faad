"""The limit of open files for long-running processes."""

from __future__ import annotations

import resource
from contextlib import suppress

WANTED_LIMIT = 65_536


def raise_limit() -> None:
    """Raise the soft limit of open files towards the hard limit. Services often start with 1,024, and a lane needs
    several."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_LIMIT if hard == resource.RLIM_INFINITY else min(hard, WANTED_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
