"""Checkpoints: stored states of a lane at a position of its event log, from which a rebuild can continue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .as_of import LogCut
from .position import Position

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The stored state of a lane, its target and its side tables after exactly the event-log records below `position`.

    - `number`: counts the checkpoints of a lane.
    - `rules`: a digest of all settings that affect the state. Under other rules the checkpoint cannot be used.
    - `begun`: the offsets at which the partitions began; the state contains everything from there on.
    - `newest`: the latest source time of its records, None if no record has one.
    - `rows`: of the target. `bytes`: of all files.
    - `identity`: the broker's ids of the topics, as far as the log has them. A topic that was created again has other
      offsets.
    """

    number: int
    lane: str
    table: str
    rules: str
    position: Position
    begun: Position
    newest: datetime | None
    taken_at: datetime
    rows: int
    bytes: int
    identity: tuple[tuple[str, str], ...] = ()

    def has_same_topics(self, identity: Mapping[str, str]) -> bool:
        """True if its offsets belong to the topics with these ids."""
        return all(identity.get(topic, known) == known for topic, known in self.identity)

    def is_usable(self, rules: str, until: datetime | LogCut | None) -> bool:
        """True if a rebuild under these rules can start from it. `until` is the time or log cut at which the rebuild
        ends; None for all records."""
        if isinstance(until, LogCut):
            return self.rules == rules and not until.is_beyond(self.position, self.newest)
        return self.rules == rules and (until is None or self.newest is None or self.newest <= until)

    def to_json(self) -> dict[str, Any]:
        """The JSON form, for `from_json` and for people."""
        return {
            "format": FORMAT,
            "number": self.number,
            "lane": self.lane,
            "table": self.table,
            "rules": self.rules,
            "position": self.position.to_json(),
            "begun": self.begun.to_json(),
            "newest": None if self.newest is None else self.newest.isoformat(),
            "taken_at": self.taken_at.isoformat(),
            "rows": self.rows,
            "bytes": self.bytes,
            "identity": dict(self.identity),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Checkpoint:
        """The checkpoint that `to_json` wrote. KeyError, TypeError, ValueError or AttributeError for anything else, and
        for a format of a newer program."""
        if data["format"] != FORMAT:
            raise ValueError("a snapshot of another format")
        newest = data["newest"]
        return cls(
            number=int(data["number"]),
            lane=str(data["lane"]),
            table=str(data["table"]),
            rules=str(data["rules"]),
            position=Position.from_json(data["position"]),
            begun=Position.from_json(data["begun"]),
            newest=None if newest is None else datetime.fromisoformat(newest),
            taken_at=datetime.fromisoformat(data["taken_at"]),
            rows=int(data["rows"]),
            bytes=int(data["bytes"]),
            identity=tuple(sorted(data["identity"].items())),
        )


@dataclass(frozen=True, slots=True)
class CheckpointSchedule:
    """When checkpoints are written: after `every` seconds or `after_records` new records, whichever is first.
    The newest `keep` checkpoints stay."""

    every: float | None
    after_records: int | None
    keep: int

    def is_due(self, last: Checkpoint | None, position: Position, now: datetime) -> bool:
        """True if a lane at `position` needs a new checkpoint; never if it has applied nothing since the last one."""
        behind = sum(max(0, o - (last.position.get(p, 0) if last else 0)) for p, o in position.items())
        if not behind:
            return False
        if last is None:
            return True
        late = self.every is not None and (now - last.taken_at).total_seconds() >= self.every
        return late or (self.after_records is not None and behind >= self.after_records)


def find_newest_usable(known: Iterable[Checkpoint], rules: str, until: datetime | LogCut | None = None) -> Checkpoint | None:
    """The newest checkpoint from which a rebuild can start."""
    found = [one for one in known if one.is_usable(rules, until)]
    return max(found, key=lambda one: one.number, default=None)
