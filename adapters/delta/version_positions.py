"""Where a lane stood at each version of its table, as the commits say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from deltalake import DeltaTable

from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Position

ATTEMPT = "replicatorAttempt"
"""Names the attempt in the commit's own record, so that a commit whose answer was lost is known again."""
STANDING = "replicatorPosition"
"""In a commit's own record: the lane, and its position with that commit."""
USER_METADATA = "userMetadata"
"""Where Spark keeps what a writer says of its commit."""
SAME_ROWS = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END"})
"""Operations whose versions have the rows of the version before."""


def encode_position(app: str, state: LaneState | None) -> str:
    """What the commit of a lane says of where it stands; of none after a reset."""
    return json.dumps([app, None if state is None else state.position.to_json()], separators=(",", ":"))


def read_version_positions(table: DeltaTable, app: str) -> Iterator[tuple[int, Position]]:
    """The versions of the table that commits of the lane `app` made, and compaction and vacuum behind them, the newest
    first, with the lane's position there. What other commits changed is not known, so their versions are left out."""
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
