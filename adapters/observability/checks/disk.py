"""Checks of folders: write access and free space."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from replicator.ports.diagnosis import Diagnosis

GIB = 1024**3
LITTLE = 2 * GIB
HARDLY_ANY = GIB // 4


def check_writable(name: str, folder: Path) -> Iterator[Diagnosis]:
    """Check that files can be created in `folder`, or in its nearest existing parent."""
    place = find_existing(folder)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        why = f"{place} cannot be written ({error.strerror or type(error).__name__})"
        yield Diagnosis("error", name, f"{folder}: {why}.", f"Let user {os.geteuid()} write there, or give another `path`.")
        return
    later = "" if place == folder else ", and is made when there is something to write"
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
