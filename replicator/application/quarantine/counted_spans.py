"""Counted spans: offsets whose rejects were counted. Several lanes may read the same records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replicator.domain.position import Span, TopicPartition

Offsets = Mapping[TopicPartition, Sequence[range]]
NO_TABLE = ""
"""Stands for rejects of unrouted records."""


class CountedSpans:
    """By table and partition, the offsets whose rejects were counted in this run or earlier. For one thread."""

    def __init__(self) -> None:
        self._spans: dict[tuple[str, TopicPartition], list[range]] = {}

    def add(self, table: str, span: Span) -> Offsets:
        """Add a span. Returns its offsets that were not in it before."""
        return {p: self._add_range((table, p), span.start[p], end) for p, end in span.end.items() if span.start[p] < end}

    def _add_range(self, key: tuple[str, TopicPartition], start: int, end: int) -> list[range]:
        spans = self._spans.get(key, [])
        touching = [known for known in spans if known.stop >= start and known.start <= end]
        new, at = [], start
        for known in touching:
            if at < known.start:
                new.append(range(at, known.start))
            at = max(at, known.stop)
        if at < end:
            new.append(range(at, end))
        whole = range(min([start, *(r.start for r in touching)]), max([end, *(r.stop for r in touching)]))
        others = [known for known in spans if known not in touching]
        self._spans[key] = sorted([*others, whole], key=lambda known: known.start)
        return new
