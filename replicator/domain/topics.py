"""The topics that a source reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import translate

INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})

MAX_SHOWN = 5


class TopicFilter:
    """Names, globs, and regular expressions that start with `^`. The broker's internal topics match only by their full
    name.

    A connector's control topics (heartbeat, transaction, schema change) are like any other topic: they are read if they
    match.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = {p: re.compile(p if p.startswith("^") else translate(p)) for p in patterns}

    def __call__(self, topic: str) -> bool:
        """True if the source reads `topic`."""
        return topic in self._patterns or (topic not in INTERNAL and any(p.match(topic) for p in self._patterns.values()))

    def find_unmatched(self, topics: Iterable[str]) -> tuple[str, ...]:
        """The patterns that match none of `topics`."""
        names = [t for t in topics if self(t)]
        return tuple(text for text, p in self._patterns.items() if text not in names and not any(map(p.match, names)))

    def find_unmatched_with_similar(self, topics: Iterable[str]) -> Mapping[str, Sequence[str]]:
        """Per pattern that matches none of `topics` the similar topics, most similar first."""
        names = [t for t in topics if t not in INTERNAL]
        return {pattern: find_similar(pattern, names) for pattern in self.find_unmatched(names)}


def find_similar(pattern: str, names: Sequence[str]) -> Sequence[str]:
    """Names that are close to a pattern, or share a whole word with it, closest first."""
    bare = re.sub(r"[\^$*?\[\]\\()+]|\.\*", "", pattern)
    words = {word for word in bare.lower().split(".") if word}
    sharing = [name for name in names if words & set(name.lower().split("."))]
    sharing.sort(key=lambda name: -len(words & set(name.lower().split("."))))
    return list(dict.fromkeys([*sharing, *get_close_matches(bare, names, MAX_SHOWN)]))[:MAX_SHOWN]


def describe_unmatched(pattern: str, similar: Sequence[str]) -> str:
    """A sentence for a pattern without topics."""
    there = f"; similar ones are {', '.join(similar)}" if similar else ""
    return f"No topic matches {pattern!r}{there}."
