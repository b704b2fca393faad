"""The position of a lane at each version of its table, from the table's commits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from deltalake import DeltaTable

from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position

ATTEMPT = "replicatorAttempt"
"""The attempt in the commit's metadata. It identifies a commit whose answer was lost."""
STANDING = "replicatorPosition"
"""In the commit's metadata: the lane, and its position after the commit."""
USER_METADATA = "userMetadata"
"""The key under which Spark stores a writer's commit metadata."""
SAME_ROWS = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END"})
"""Operations whose versions have the rows of the version before."""


def encode_position(app: str, state: LaneState | None) -> str:
    """The position in a lane's commit; null after a reset."""
    return json.dumps([app, None if state is None else state.position.to_json()], separators=(",", ":"))


def read_version_positions(table: DeltaTable, app: str) -> Iterator[tuple[int, Position]]:
    """Versions of the table with the position of the lane `app`, the newest first.

    They are the lane's commits, and compactions and vacuums after them. Other commits may change rows, so their
    versions are left out.
    """
    found: list[tuple[int, Position]] = []
    at: Position | None = None
    for entry in sorted(table.history(), key=lambda entry: entry["version"]):
        said = _read_metadata(entry)
        if said is not None and said[0] == app:
            at = None if said[1] is None else Position.from_json(said[1])
        elif entry.get("operation") not in SAME_ROWS:
            at = None
        if at is not None:
            found.append((entry["version"], at))
    yield from reversed(found)


def _read_metadata(entry: dict[str, Any]) -> Any:
    text = entry.get(STANDING)
    if text is None and STANDING in str(entry.get(USER_METADATA)):
        text = json.loads(entry[USER_METADATA])[STANDING]
    return None if text is None else json.loads(text)
