"""Whether two programs have the same rules for a lane."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import cast

from replicator.domain.errors import ConfigProblem
from replicator.settings import LaneSettings, Loaded


@dataclass(frozen=True, slots=True)
class Swap:
    """What the running program is asked for: the lane's table, the target that was made anew, and under which rules."""

    table: str
    into: str
    digest: str


def digest_of(loaded: Loaded, lane: LaneSettings) -> str:
    """Equal for configurations under which the lane makes the same of its source's records."""
    settings = loaded.settings
    said = {
        "source": settings.sources[lane.source].model_dump(mode="json"),
        "table": settings.tables[cast(int, lane.at[1])].model_dump(mode="json"),
        "defaults": settings.defaults.model_dump(mode="json"),
        "limits": settings.limits.model_dump(mode="json"),
        "lane": [lane.table, lane.sink, lane.into],
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


def swap_words(swap: Swap) -> str:
    """As it is sent."""
    return json.dumps(asdict(swap))


def swap_said(words: str) -> Swap:
    """What `swap_words` made. ConfigProblem for anything else."""
    try:
        said = json.loads(words)
        return Swap(str(said["table"]), str(said["into"]), str(said["digest"]))
    except (ValueError, KeyError, TypeError) as wrong:
        raise ConfigProblem(
            "a swap needs the table, its new target and the digest of the rules", next_step="Use `replicator replay TABLE`."
        ) from wrong
