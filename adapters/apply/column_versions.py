"""The column versions of a key: the sequences of a lane with a sequence for each column. They are one JSON text
per key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from replicator.domain.sequence import Sequence as SequenceKey

COLUMN_VERSIONS = "_cdc_beside"
"""The column with this text, after the key columns."""


@dataclass(frozen=True, slots=True)
class ColumnVersions:
    """The sequences of one key that its row does not show.

    - `deleted`: the sequence of the key's last delete.
    - `older`: columns that a lower change sent than the change of the row's sequence. The sequence is empty for
      values from before replication started.
    - `unsent`: columns that no change has sent.
    """

    deleted: SequenceKey | None = None
    older: Mapping[str, SequenceKey] = field(default_factory=dict)
    unsent: Sequence[str] = ()

    def to_text(self) -> str | None:
        """The stored text; None if there is nothing to store."""
        record = {"deleted": self.deleted, "older": self.older, "unsent": self.unsent}
        filled = {name: value for name, value in record.items() if value}
        return json.dumps(filled, sort_keys=True, ensure_ascii=False) if filled else None


def parse_column_versions(text: str | None) -> ColumnVersions:
    """Parses the text of `ColumnVersions.to_text`."""
    record = json.loads(text) if text else {}
    deleted = record.get("deleted")
    older = {name: tuple(sequence) for name, sequence in record.get("older", {}).items()}
    return ColumnVersions(None if deleted is None else tuple(deleted), older, tuple(record.get("unsent", ())))


def rename_columns(values: pa.Array, names: Mapping[str, str | None]) -> pa.Array:
    """`_cdc_unsent` or `_cdc_beside` after columns were renamed or removed (None)."""

    def new(listed: Sequence[str]) -> list[str]:
        return [name for name in (names.get(old, old) for old in listed) if name is not None]

    if pa.types.is_list(values.type):
        return pa.array([new(listed or ()) or None for listed in values.to_pylist()], values.type)
    texts = []
    for versions in map(parse_column_versions, values.to_pylist()):
        older = {name: sequence for old, sequence in versions.older.items() for name in new([old])}
        texts.append(ColumnVersions(versions.deleted, older, sorted(new(versions.unsent))).to_text())
    return pa.array(texts, values.type)
