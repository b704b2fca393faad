"""Settings of the allocators of libraries: how long they keep free memory. Each reads them when it is first imported."""

from __future__ import annotations

import os
from collections.abc import Mapping

SETTINGS = {
    # Arrow gives pages back to the system after 10 ms by default and faults them in again for the next batch. Never to give
    # them back made 1.8 GB of the 1.6 GB that a long run needs with this (measured).
    "MIMALLOC_PURGE_DELAY": "200",
    # Huge pages have to be zeroed whole, and others moved to make room for them: a third to a half of the time that a replay
    # spent in the system (measured). They are off for the process then.
    "MIMALLOC_ALLOW_THP": "0",
    # delta-rs keeps them for 10 s, in which a merge of wide rows frees as much again as it needs. To give them back at once
    # doubles its processor time (measured), this adds a tenth.
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:500,muzzy_decay_ms:0",
}


ALONE = {
    # What is free is marked as such, and taken back by the system when it needs it, instead of being given up at once and
    # faulted in again: a tenth of the processor time of a replay for 200 MB more (measured). A process that stays would
    # keep them.
    "MIMALLOC_PURGE_DECOMMITS": "0",
}
"""The settings for a command that reads a whole event log and then ends."""


def use_settings(settings: Mapping[str, str] = SETTINGS) -> None:
    """Add the settings to the environment, unless it has them. To be called before Arrow and delta-rs are imported."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)
