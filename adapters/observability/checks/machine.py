"""Check of this machine: Java runtime, limit of open files, free disk space."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from replicator.ports.runtime import Diagnosis

from ...jvm.java import MINIMUM, java_version, list_candidates

FEW_FILES = 1024
FIX_JAVA = (
    f"Only the embedded stack and Spark need it: install a Java runtime ({MINIMUM} or newer) and set JAVA_HOME, or "
    "`pip install 'replicator[stack]'`, which brings one."
)


class MachineCheck:
    """`ports.runtime.Check`; option `state`: the folder of local state."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._state = Path(options["state"])

    def diagnose(self) -> Sequence[Diagnosis]:
        return [self._check_java(), self._check_open_files(), *check_room(self._name, self._state)]

    def _check_java(self) -> Diagnosis:
        tried = []
        for java in list_candidates():
            version = java_version(java)
            if version is not None and version >= MINIMUM:
                return Diagnosis("ok", self._name, f"Java {version} is at {java}.")
            tried.append(f"{java} ({'does not run' if version is None else f'Java {version}'})")
        finding = f"only found {', '.join(tried)}" if tried else "found none"
        return Diagnosis("warning", self._name, f"There is no Java {MINIMUM} or newer: {finding}.", FIX_JAVA)

    def _check_open_files(self) -> Diagnosis:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY or soft >= FEW_FILES:
            return Diagnosis("ok", self._name, f"{'Any number of' if soft < 0 else soft} files may be open at once.")
        step = f"Run `ulimit -n {max(FEW_FILES, min(hard, 65_536))}` before the start, or raise LimitNOFILE of the service."
        return Diagnosis("warning", self._name, f"Only {soft} files may be open at once (ulimit -n).", step)


# Folders: write access and free space.

GIB = 1024**3
LITTLE = 2 * GIB
HARDLY_ANY = GIB // 4


def check_writable(name: str, folder: Path) -> Iterator[Diagnosis]:
    """Check that files can be created in `folder`, or in its nearest existing parent."""
    parent = find_existing(folder)
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        why = f"{parent} cannot be written ({error.strerror or type(error).__name__})"
        yield Diagnosis("error", name, f"{folder}: {why}.", f"Let user {os.geteuid()} write there, or give another `path`.")
        return
    later = "" if parent == folder else ", and is made when there is something to write"
    yield Diagnosis("ok", name, f"{folder} can be written{later}.")


def check_room(name: str, folder: Path) -> Iterator[Diagnosis]:
    """Check the free space on the disk of `folder`."""
    try:
        free = shutil.disk_usage(find_existing(folder)).free
    except OSError as error:
        yield Diagnosis("error", name, f"{folder}: {error.strerror or type(error).__name__}.", "Mount the disk again.")
        return
    sentence = f"The disk of {folder} has {free / GIB:.1f} GiB left."
    if free >= LITTLE:
        yield Diagnosis("ok", name, sentence)
    else:
        yield Diagnosis("error" if free < HARDLY_ANY else "warning", name, sentence, "Free space, or move the folder.")


def find_existing(folder: Path) -> Path:
    """`folder`, or its nearest existing parent."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
