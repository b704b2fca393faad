"""Snapshots of a lane's state at a position of its event log, from which a replay may go on."""

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
    """What a lane's target and all that is kept beside it are after exactly the records of the event log below `position`.

    `number` counts the snapshots of a lane. `rules` is a digest of everything that decides what becomes of records: under
    other ones it is of no use. `begun`: where the partitions began, of which it holds everything from there on. `newest`:
    the latest time at the source among its records, None where none tells one. `rows` of the target, `bytes` of all files.
    `identity`: the broker's own ids of the topics, as far as the log knows them: offsets of a topic that was made anew are
    others.
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
        """Whether its offsets are those of the topics that have these ids now."""
        return all(identity.get(topic, known) == known for topic, known in self.identity)

    def is_usable(self, rules: str, until: datetime | LogCut | None) -> bool:
        """Whether a replay under these rules, of records up to that time or border (None: of all), can begin with it."""
        if isinstance(until, LogCut):
            return self.rules == rules and not until.is_beyond(self.position, self.newest)
        return self.rules == rules and (until is None or self.newest is None or self.newest <= until)

    def to_json(self) -> dict[str, Any]:
        """For `from_json`, and for people."""
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
        """What `to_json` made. KeyError, TypeError, ValueError or AttributeError for anything else, and for a format that a
        newer program wrote."""
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
    """When snapshots are taken: `every` so many seconds, or once so many records (`after_records`) have come behind the last
    one, whatever comes first; the newest `keep` stay."""

    every: float | None
    after_records: int | None
    keep: int

    def is_due(self, last: Checkpoint | None, position: Position, now: datetime) -> bool:
        """Whether one is due for a lane that stands at `position`. None is where nothing was applied since the last one."""
        behind = sum(max(0, o - (last.position.get(p, 0) if last else 0)) for p, o in position.items())
        if not behind:
            return False
        if last is None:
            return True
        late = self.every is not None and (now - last.taken_at).total_seconds() >= self.every
        return late or (self.after_records is not None and behind >= self.after_records)


def find_newest_usable(known: Iterable[Checkpoint], rules: str, until: datetime | LogCut | None = None) -> Checkpoint | None:
    """The latest of them with which a replay can begin."""
    found = [one for one in known if one.is_usable(rules, until)]
    return max(found, key=lambda one: one.number, default=None)
