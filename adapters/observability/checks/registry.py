"""Check of a schema registry: it answers and grants access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from replicator.domain.errors import ReplicatorError
from replicator.ports.options import RegistrySettings
from replicator.ports.runtime import Diagnosis

from ...kafka.schema_registry import Registry


class RegistryCheck:
    """`ports.runtime.Check`; options as in `replicator.ports.options.RegistrySettings`."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._options = RegistrySettings(**{key: options[key] for key in RegistrySettings.model_fields if key in options})

    def diagnose(self) -> Sequence[Diagnosis]:
        try:
            count = Registry(self._options).count_subjects()
        except ReplicatorError as problem:
            sentence = f"{problem.sentence[:1].upper()}{problem.sentence[1:]}."
            return [Diagnosis("error", self._name, sentence, problem.next_step)]
        if not count:
            step = "A connector registers them with its first records; is this the registry that its converters write to?"
            return [Diagnosis("warning", self._name, f"{self._options.url} answers, and knows no schemas.", step)]
        return [Diagnosis("ok", self._name, f"{self._options.url} answers; it knows {count} subjects.")]
