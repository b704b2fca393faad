"""What a lane with a sequence for each column keeps of a key beside its target: one JSON text per key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from replicator.domain.sequence import Sequence as SequenceKey

BESIDE = "_cdc_beside"
"""The column that holds it, after those of the key."""


@dataclass(frozen=True, slots=True)
class ColumnVersions:
    """`deleted`: the sequence of the key's last delete. `older`: the columns that a lower change sent than the one that the
    row's sequence is of; empty for values from before replication began. `unsent`: those that nobody sent."""

    deleted: SequenceKey | None = None
    older: Mapping[str, SequenceKey] = field(default_factory=dict)
    unsent: Sequence[str] = ()

    def to_text(self) -> str | None:
        """As it is kept; None where there is nothing to keep."""
        said = {"deleted": self.deleted, "older": self.older, "unsent": self.unsent}
        kept = {name: value for name, value in said.items() if value}
        return json.dumps(kept, sort_keys=True, ensure_ascii=False) if kept else None


def parse_column_versions(text: str | None) -> ColumnVersions:
    """What `ColumnVersions.to_text` wrote."""
    said = json.loads(text) if text else {}
    deleted = said.get("deleted")
    older = {name: tuple(sequence) for name, sequence in said.get("older", {}).items()}
    return ColumnVersions(None if deleted is None else tuple(deleted), older, tuple(said.get("unsent", ())))
