"""The positions of a lake's lanes: one file per commit, named by the txn version that makes it valid.

File n is written before the commit with txn version n. A file without its commit is from a failed attempt, or
from one that may still commit. The holder of the lane's lock replaces such an orphan.

Without locks (in an object store) a number belongs to the writer that created its file, and others use the next
number. A file is written once, and describes the commit of its number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from replicator.domain.errors import DataLoss, Fatal
from replicator.domain.lane_state import state_from_json, state_to_json
from replicator.domain.policy.plan import LaneState
from replicator.domain.position import Span

from .folders import Folder

KEPT = 20
FORMAT = 1


@dataclass(frozen=True, slots=True)
class PositionRecord:
    """The content of the position file of commit `version`.

    `state` is None after a reset. `attempt` is also in the commit, and distinguishes it from other attempts at
    this version.
    """

    version: int
    state: LaneState | None
    span: Span | None
    attempt: str


class PositionFiles:
    """The position files of one lane in `folder`. The caller holds the lane, except for `read_record`."""

    def __init__(self, folder: Folder, lane: str) -> None:
        self._folder = folder
        self._lane = lane

    def announce(self, version: int, state: LaneState | None, span: Span | None) -> PositionRecord:
        """Writes the file of a commit before the commit; durable on return.

        Its number is `version`, or a later one if this writer may not replace that file.
        """
        attempt = uuid4().hex
        text = {
            "format": FORMAT,
            "attempt": attempt,
            "state": None if state is None else state_to_json(state),
            "span": None if span is None else span.to_json(),
        }
        while not self._folder.claim(_file_name(version), text):
            version += 1
        return PositionRecord(version, state, span, attempt)

    def has_version(self, version: int) -> bool:
        """True when file `version` exists: of a commit, or an orphan."""
        return self._folder.has_file(_file_name(version))

    def read_record(self, version: int) -> PositionRecord:
        """File `version`, whose commit the caller has read. Raises DataLoss when it is missing or damaged."""
        try:
            data = json.loads(self._folder.load(_file_name(version)))
            self._refuse_newer(version, data["format"])
            return _parse_record(version, data)
        except FileNotFoundError as gone:
            raise self._lost_error(version, "is missing although its commit is there") from gone
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._lost_error(version, "is damaged") from error

    def prune(self, version: int) -> None:
        """Removes all but the newest files up to `version`."""
        for file in self._folder.files():
            number = file.removesuffix(".json")
            if number.isdecimal() and int(number) <= version - KEPT:
                self._folder.drop(file)

    def _refuse_newer(self, version: int, found: int) -> None:
        if found > FORMAT:
            raise Fatal(
                f"position file {version} of lane {self._lane} has format {found}, which a newer version wrote",
                next_step="Run that version of Replicator.",
            )

    def _lost_error(self, version: int, what: str) -> DataLoss:
        return DataLoss(
            f"position file {self._folder / _file_name(version)} of lane {self._lane} {what}",
            next_step=f"Restore it, or load the lane again with `replicator lanes resync {self._lane}`.",
        )


def _file_name(version: int) -> str:
    return f"{version}.json"


def _parse_record(version: int, data: Mapping[str, Any]) -> PositionRecord:
    state, span = data["state"], data["span"]
    return PositionRecord(
        version,
        None if state is None else state_from_json(state),
        None if span is None else Span.from_json(span),
        data["attempt"],
    )
