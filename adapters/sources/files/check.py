"""Check of an archive for `doctor`: it exists, is not empty, and is readable."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from replicator.domain.errors import ReplicatorError
from replicator.domain.plain_values import format_count
from replicator.ports.diagnosis import Diagnosis

from .file_list import ArchiveFile
from .source import ArchiveSource

OF_EVERY_SOURCE = ("positions", "production")
"""Options that checks of all sources get and that files do not use."""


class ArchiveCheck:
    """`ports.diagnosis.Check`, with the options of `source`."""

    source = ArchiveSource

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        own = {key: value for key, value in options.items() if key not in OF_EVERY_SOURCE}
        self._name = name
        read, self._form = self.source.read_options(own)
        self._place = read.place

    def diagnose(self) -> Sequence[Diagnosis]:
        try:
            files = self._form.files(self._place)
        except ReplicatorError as problem:
            return [Diagnosis("error", self._name, problem.sentence, problem.next_step)]
        if not files:
            step = f"Put files that end with {', '.join(self._form.suffixes)} there, or correct `path`."
            return [Diagnosis("warning", self._name, f"{self._place} has no file yet.", step)]
        closed = next(self._find_unreadable(files), None)
        return [closed or Diagnosis("ok", self._name, f"{self._place} has {format_count(len(files), 'file')}.")]

    def _find_unreadable(self, files: Sequence[ArchiveFile]) -> Iterator[Diagnosis]:
        """The unreadable files. In an object store only the first is tested: it may allow listing but not reading."""
        for file in files:
            if isinstance(file.path, Path):
                if not os.access(file.path, os.R_OK):
                    yield Diagnosis("error", self._name, f"{file.path} cannot be read.", f"Let user {os.geteuid()} read it.")
                continue
            try:
                with file.path.open("rb") as stream:
                    stream.read(1)
            except ReplicatorError as problem:
                yield Diagnosis("error", self._name, problem.sentence, problem.next_step)
            return
