"""A folder of Delta tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from replicator.domain.errors import ReplicatorError
from replicator.ports.diagnosis import Diagnosis

from ..delta.layout import Lake
from .disk import room, writable


class DeltaCheck:
    """`ports.diagnosis.Check`; option `path`: the folder of a lake, an event log or of dead letters."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._path = str(options["path"])

    def diagnose(self) -> Sequence[Diagnosis]:
        """See `ports.diagnosis.Check.diagnose`."""
        try:
            return list(self._look(Lake.at(self._path).root))
        except ReplicatorError as problem:
            return [Diagnosis("error", self._name, problem.sentence, problem.next_step)]

    def _look(self, root: Path) -> Iterator[Diagnosis]:
        if root.exists() and not root.is_dir():
            yield Diagnosis(
                "error", self._name, f"{root} is a file, not a folder.", "Give another `path`, or remove the file."
            )
            return
        yield from writable(self._name, root)
        yield from room(self._name, root)
