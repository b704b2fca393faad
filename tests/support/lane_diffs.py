"""Results of comparisons, for tests of their output."""

from typing import Any

from replicator.domain.differences import LaneDiff

USUAL: dict[str, Any] = {
    "lane": "lake.orders",
    "table": "public.orders",
    "against": "source",
    "position": ("0/1", "0/1"),
    "commit": "version 1",
    "rows": 10,
    "missing": 0,
    "extra": 0,
    "different": 0,
    "differences": (),
    "not_compared": (),
    "begun": "2026-11-28T22:10:11Z",
    "seconds": 1.0,
}


def make_diff(**values: Any) -> LaneDiff:
    """The result of an equal lane, except for these values."""
    return LaneDiff(**{**USUAL, **values})
