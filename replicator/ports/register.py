"""The port of the register: facts about a source that a pipeline stores outside the targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from replicator.domain.connectors import Connector
from replicator.domain.position import Position


@dataclass(frozen=True)
class RegisterEntry:
    """The facts about one source.

    - `topics`, `keys`: per table. A key is stored because some records (a truncate) do not contain it. A table without
      a key is not in `keys`.
    - `beginnings`: per lane the offset at which each of its partitions began.
    - `began`: the position of the source at first sight; None before the first start.
    - `connectors`: the connectors that wrote the records, each identity once.

    Targets own the progress of a lane. This entry only has the lanes, and the beginnings of partitions. A beginning
    stays here while a lane has applied nothing of the partition, even if other lanes have passed it.
    """

    topics: Mapping[str, frozenset[str]] = field(default_factory=dict)
    beginnings: Mapping[str, Position] = field(default_factory=dict)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    began: Position | None = None
    connectors: Sequence[Connector] = ()


class Register(Protocol):
    """Stores a `RegisterEntry` per source. Losing it is safe: the stream is read from the source's `start_from` again,
    and lanes skip the records that they have applied."""

    def load(self, source: str) -> RegisterEntry:
        """The entry that `save` stored last; empty if there is none."""

    def save(self, source: str, seen: RegisterEntry) -> None:
        """Replace the entry, completely or not at all; durable on return."""
