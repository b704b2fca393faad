"""The port to what a pipeline remembers of its source beside the targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from replicator.domain.connectors import Connector
from replicator.domain.position import Position


@dataclass(frozen=True)
class RegisterEntry:
    """What was seen of one source: per table its topics and its key, per lane where each of its partitions began, and where
    each partition of the source was at first sight (`began`; None before the first start).

    Targets own how far a lane got; this only says which lanes there are and where one that has applied nothing of a
    partition yet has to begin, whatever other lanes have passed meanwhile. A key is kept because some records (a truncate)
    do not tell it; a table without one is not in `keys`. `connectors`: what wrote the records, each once by its identity.
    """

    topics: Mapping[str, frozenset[str]] = field(default_factory=dict)
    beginnings: Mapping[str, Position] = field(default_factory=dict)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    began: Position | None = None
    connectors: Sequence[Connector] = ()


class Register(Protocol):
    """Keeps `RegisterEntry` per source. Losing it is safe: the stream is then read from the source's `start_from` again,
    and lanes trim what they have applied."""

    def load(self, source: str) -> RegisterEntry:
        """What `save` kept last; empty when nothing was."""

    def save(self, source: str, seen: RegisterEntry) -> None:
        """Durable when it returns, and replaced whole or not at all."""
