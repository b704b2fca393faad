"""Checks a folder of Delta tables, on a disk or in an object store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from replicator.domain.errors import ConfigProblem, ReplicatorError
from replicator.ports.diagnosis import Diagnosis
from replicator.ports.frames import Lane

from ...delta.folders import LocalFolder
from ...delta.lake import Lake
from ...delta.options import LakeOptions
from ...observability.checks.disk import check_room, check_writable
from .store_check import check_store


class DeltaCheck:
    """`ports.diagnosis.Check` for a folder of Delta tables.

    Options: `path` (the folder of a lake, an event log or dead letters), `storage` (its access), and `lanes`
    (the lanes with a table of their own).
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._lanes: Sequence[Lane] = options.get("lanes", ())
        self._options = {key: options[key] for key in ("path", "storage") if key in options}

    def diagnose(self) -> Sequence[Diagnosis]:
        try:
            lake = LakeOptions.from_options(self._options).lake
            found = (
                self._check_folder(lake.root) if isinstance(lake.root, LocalFolder) else check_store(self._name, lake.root)
            )
            return [*found, *self._check_second_writers(lake)]
        except ReplicatorError as problem:
            return [Diagnosis("error", self._name, problem.sentence, problem.next_step)]

    def _check_second_writers(self, lake: Lake) -> Iterator[Diagnosis]:
        for lane in self._lanes:
            try:
                lake.refuse_other_writer(lane)
            except ConfigProblem as problem:
                yield Diagnosis("error", self._name, f"{lane.id}: {problem.sentence}.", problem.next_step)

    def _check_folder(self, root: Path) -> Iterator[Diagnosis]:
        if root.exists() and not root.is_dir():
            yield Diagnosis(
                "error", self._name, f"{root} is a file, not a folder.", "Give another `path`, or remove the file."
            )
            return
        yield from check_writable(self._name, root)
        yield from check_room(self._name, root)
