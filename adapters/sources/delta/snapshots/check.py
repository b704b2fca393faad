"""Snapshots as `doctor` looks at them: there, with versions in their names, and readable. Takes none in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from replicator.domain.errors import ReplicatorError
from replicator.ports.diagnosis import Diagnosis

from .found import snapshots


class SnapshotsCheck:
    """`ports.diagnosis.Check`; the options of the source, of which it looks at `path`."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name, self._path = name, str(options["path"])

    def diagnose(self) -> Sequence[Diagnosis]:
        """See `ports.diagnosis.Check.diagnose`."""
        try:
            found = snapshots(self._path)
            rows = found[-1].rows() if found else None
        except ReplicatorError as problem:
            return [Diagnosis("error", self._name, problem.sentence, problem.next_step)]
        if not found:
            step = "The pipeline starts once there is one."
            return [Diagnosis("warning", self._name, f"There is no snapshot in {self._path} yet.", step)]
        newest = f"There are {len(found)} snapshots of {Path(self._path).name}; the newest is version {found[-1].version}"
        if rows is None:
            step = "It is taken in once it is whole."
            return [Diagnosis("warning", self._name, f"{newest}, which is not whole yet.", step)]
        return [Diagnosis("ok", self._name, f"{newest}, with {rows.num_rows} rows.")]
