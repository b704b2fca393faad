"""Which topics a source reads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate

INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})


class TopicFilter:
    """Names, globs, and regular expressions that start with `^`. The broker's own topics match by their full name only.

    A connector's control topics (heartbeat, transaction, schema change) are topics like any other: read when they match.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = {p: re.compile(p if p.startswith("^") else translate(p)) for p in patterns}

    def __call__(self, topic: str) -> bool:
        """Whether the source reads `topic`."""
        return topic in self._patterns or (topic not in INTERNAL and any(p.match(topic) for p in self._patterns.values()))

    def unmatched(self, topics: Iterable[str]) -> tuple[str, ...]:
        """Patterns that none of `topics` matches."""
        names = [t for t in topics if self(t)]
        return tuple(text for text, p in self._patterns.items() if text not in names and not any(map(p.match, names)))
