"""Where each lane of a lake stands: one file per commit, numbered by the txn version that makes it valid.

A commit with txn version n is preceded by file n, so a file without its commit is an attempt that died. Who holds the
lane's lock replaces such an orphan. A writer without a lock (an object store) must instead apply exactly the orphan's
span, which is why a file also holds the span.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from replicator.domain.errors import DataLoss, Fatal
from replicator.domain.plan import LaneState
from replicator.domain.position import Span

from .durable import write_json
from .state_json import state_from_json, state_to_json

KEPT = 20
FORMAT = 1


@dataclass(frozen=True, slots=True)
class PositionRecord:
    """What one commit makes true. `state` is None after a reset. `attempt` is also in the commit, and tells it apart from
    other attempts at the same version."""

    state: LaneState | None
    span: Span | None
    attempt: str


class Positions:
    """The position files of one lane in `folder`. Who calls holds the lane's lock, except for `read`."""

    def __init__(self, folder: Path, lane: str) -> None:
        self._folder = folder
        self._lane = lane

    def announce(self, version: int, state: LaneState | None, span: Span | None) -> PositionRecord:
        """Write file `version` before its commit; durable on return. An orphan of that number is replaced."""
        record = PositionRecord(state, span, uuid4().hex)
        write_json(
            self._file(version),
            {
                "format": FORMAT,
                "attempt": record.attempt,
                "state": None if state is None else state_to_json(state),
                "span": None if span is None else span.to_json(),
            },
        )
        return record

    def has(self, version: int) -> bool:
        """True when file `version` is there: of a commit, or an orphan."""
        return self._file(version).exists()

    def read(self, version: int) -> PositionRecord:
        """File `version`, whose commit the caller has seen. DataLoss when it is not there, or is not what was written."""
        try:
            data = json.loads(self._file(version).read_text(encoding="utf-8"))
            self._refuse_newer(version, data["format"])
            return _record(data)
        except FileNotFoundError as gone:
            raise self._lost(version, "is missing although its commit is there") from gone
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._lost(version, "is damaged") from error

    def prune(self, version: int) -> None:
        """Remove all but the newest files up to `version`."""
        for path in self._folder.glob("[0-9]*.json"):
            if int(path.stem) <= version - KEPT:
                path.unlink(missing_ok=True)

    def _refuse_newer(self, version: int, found: int) -> None:
        if found > FORMAT:
            raise Fatal(
                f"position file {version} of lane {self._lane} has format {found}, which a newer version wrote",
                next_step="Run that version of replicator.",
            )

    def _lost(self, version: int, what: str) -> DataLoss:
        return DataLoss(
            f"position file {self._file(version)} of lane {self._lane} {what}",
            next_step=f"Restore it, or load the lane again with `replicator lanes resync {self._lane}`.",
        )

    def _file(self, version: int) -> Path:
        return self._folder / f"{version}.json"


def _record(data: Mapping[str, Any]) -> PositionRecord:
    state, span = data["state"], data["span"]
    return PositionRecord(
        None if state is None else state_from_json(state),
        None if span is None else Span.from_json(span),
        data["attempt"],
    )
