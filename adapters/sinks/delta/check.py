"""Checks a folder of Delta tables, on a disk or in an object store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

from replicator.domain.errors import ConfigProblem, Fatal, ReplicatorError
from replicator.ports.frames import Lane
from replicator.ports.runtime import Diagnosis

from ...delta.folders import Folder, LocalFolder
from ...delta.lake import HOME
from ...delta.options import LakeOptions
from ...observability.checks.machine import check_room, check_writable


class DeltaCheck:
    """`ports.runtime.Check` for a folder of Delta tables.

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
            name, root = self._name, lake.root
            if not isinstance(root, LocalFolder):
                diagnoses = [*check_store(name, root)]
            elif root.exists() and not root.is_dir():
                step = "Give another `path`, or remove the file."
                diagnoses = [Diagnosis("error", name, f"{root} is a file, not a folder.", step)]
            else:
                diagnoses = [*check_writable(name, root), *check_room(name, root)]
            for lane in self._lanes:
                try:
                    lake.refuse_other_writer(lane)
                except ConfigProblem as problem:
                    diagnoses.append(Diagnosis("error", name, f"{lane.id}: {problem.sentence}.", problem.next_step))
            return diagnoses
        except ReplicatorError as problem:
            return [Diagnosis("error", self._name, problem.sentence, problem.next_step)]
        except OSError as error:
            sentence = f"{self._options['path']} cannot be read ({error.strerror or type(error).__name__})."
            step = f"Let user {os.geteuid()} read there, or give another `path`."
            return [Diagnosis("error", self._name, sentence, step)]


# An object store: it answers, and accepts our credentials.

NO_CREATE = "Use a store that knows conditional writes (`If-None-Match`), as S3 does."


def check_store(name: str, folder: Folder) -> Iterator[Diagnosis]:
    """Checks that the folder can be listed, and that a file can be created exactly once."""
    try:
        tables = len([f for f in folder.folders() if f.name != HOME])
        yield Diagnosis("ok", name, f"{folder} answers; there are {tables} folders in it.")
        place, file = folder / HOME / "checks", f"{uuid4().hex}.json"
        try:
            once, twice = place.claim(file, {"once": True}), place.claim(file, {"once": False})
        finally:
            place.drop(file)
        if not once:
            raise Fatal(f"a new file cannot be made in {place}")
        if twice:
            yield Diagnosis("error", name, f"{folder} lets a file be made twice.", NO_CREATE)
        else:
            yield Diagnosis("ok", name, f"{folder} can be written, and makes a file once only.")
    except ReplicatorError as problem:
        kind = problem.sentence[:1].upper() + problem.sentence[1:]
        step = problem.next_step or "Start it, or correct `endpoint` under `storage`, and `path`."
        yield Diagnosis("error", name, f"{kind}.", step)
