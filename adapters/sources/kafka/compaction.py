"""Effects of topic compaction on the readers of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from replicator.ports.diagnosis import Diagnosis

from ...arrow.record_limits import find_table_entry
from .retention import Settings


@dataclass(frozen=True)
class TableReaders:
    """The readers of a table. `every`: those that need every change. `ignores_tombstones`: those that skip null."""

    every: Sequence[str] = ()
    ignores_tombstones: Sequence[str] = ()


def check_compaction(subject: str, settings: Settings, readers: Mapping[str, TableReaders]) -> Iterator[Diagnosis]:
    """Warnings for compacted topics that lack changes for some reader. `readers`: by table name or glob."""
    for topic in sorted(topic for topic, said in settings.items() if "compact" in said.get("cleanup.policy", "")):
        mine = _find_readers(topic, readers)
        if mine.every:
            text = (
                f"Topic {topic} is compacted, so it keeps the last change of a key, and "
                f"{_join_names(mine.every)} every change."
            )
            step = "Set cleanup.policy=delete for it, or read the topic only under the policy scd1."
            yield Diagnosis("warning", subject, text, step)
        if mine.ignores_tombstones:
            text = (
                f"Topic {topic} is compacted, so for a delete it may keep only a message without a value. "
                f"These messages are ignored by {', '.join(mine.ignores_tombstones)}."
            )
            yield Diagnosis("warning", subject, text, "Write `tombstones: delete` for its table.")


def _join_names(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'wants' if len(names) == 1 else 'want'}"


def _find_readers(topic: str, readers: Mapping[str, TableReaders]) -> TableReaders:
    """The readers of the table in the topic's name: `<prefix>.<schema>.<table>`, or only the table."""
    parts = topic.split(".")
    found = (find_table_entry(readers, ".".join(parts[-count:])) for count in (2, 1, len(parts)))
    return next(filter(None, found), TableReaders())
