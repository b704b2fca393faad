"""An archive as `doctor` looks at it: there, not empty, and readable."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from replicator.domain.errors import ReplicatorError
from replicator.ports.diagnosis import Diagnosis

from .source import ArchiveSource

OF_EVERY_SOURCE = ("positions", "production")
"""What any source's check is told, and does not matter to files."""


class ArchiveCheck:
    """`ports.diagnosis.Check`; the options of `source`."""

    source = ArchiveSource

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        own = {key: value for key, value in options.items() if key not in OF_EVERY_SOURCE}
        self._name = name
        read, self._form = self.source.read_options(own)
        self._path = read.path

    def diagnose(self) -> Sequence[Diagnosis]:
        """See `ports.diagnosis.Check.diagnose`."""
        try:
            files = self._form.files(self._path)
        except ReplicatorError as problem:
            return [Diagnosis("error", self._name, problem.sentence, problem.next_step)]
        if not files:
            step = f"Put files that end with {', '.join(self._form.suffixes)} there, or correct `path`."
            return [Diagnosis("warning", self._name, f"{self._path} has no file yet.", step)]
        closed = [file.path for file in files if not os.access(file.path, os.R_OK)]
        if closed:
            return [Diagnosis("error", self._name, f"{closed[0]} cannot be read.", f"Let user {os.geteuid()} read it.")]
        return [Diagnosis("ok", self._name, f"{self._path} has {len(files)} files.")]
