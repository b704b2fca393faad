"""Checks an object store: it answers, and accepts our credentials."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

from replicator.domain.errors import Fatal, ReplicatorError
from replicator.ports.diagnosis import Diagnosis

from ...delta.folders import Folder
from ...delta.lake import HOME

NO_CREATE = "Use a store that knows conditional writes (`If-None-Match`), as S3 does."


def check_store(name: str, folder: Folder) -> Iterator[Diagnosis]:
    """Checks that the folder can be listed, and that a file can be created exactly once."""
    try:
        tables = len([f for f in folder.folders() if f.name != HOME])
        yield Diagnosis("ok", name, f"{folder} answers; there are {tables} folders in it.")
        yield _check_writable(name, folder)
    except ReplicatorError as problem:
        kind = problem.sentence[:1].upper() + problem.sentence[1:]
        step = problem.next_step or "Start it, or correct `endpoint` under `storage`, and `path`."
        yield Diagnosis("error", name, f"{kind}.", step)


def _check_writable(name: str, folder: Folder) -> Diagnosis:
    """Checks that a file can be created once and not twice. The file is deleted."""
    place, file = folder / HOME / "checks", f"{uuid4().hex}.json"
    try:
        once, twice = place.claim(file, {"once": True}), place.claim(file, {"once": False})
    finally:
        place.drop(file)
    if not once:
        raise Fatal(f"a new file cannot be made in {place}")
    if twice:
        return Diagnosis("error", name, f"{folder} lets a file be made twice.", NO_CREATE)
    return Diagnosis("ok", name, f"{folder} can be written, and makes a file once only.")
