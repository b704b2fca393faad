"""The checks of `doctor` for the topic of dead letters: it is reachable, never deletes records, and has enough replicas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from replicator.domain.errors import ReplicatorError
from replicator.ports.runtime import Diagnosis

from ...stores import DeadLetterSettings
from .topic import DeadLetterTopic

COPIES = 3


class DeadLetterTopicCheck:
    """`ports.runtime.Check`; options of `KafkaDeadLetters`, and `production`."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        own = dict(options)
        self._name = name
        self._production = bool(own.pop("production", False))
        self._options = DeadLetterSettings.read(own)

    def diagnose(self) -> Sequence[Diagnosis]:
        found: list[Diagnosis] = []
        try:
            with closing(DeadLetterTopic(self._options)) as topic:
                found.extend(self._check_topic(topic))
        except ReplicatorError as problem:
            found.append(Diagnosis("error", self._name, problem.sentence, problem.next_step))
        return found

    def _check_topic(self, topic: DeadLetterTopic) -> Iterator[Diagnosis]:
        there = topic.exists()
        yield Diagnosis("ok", self._name, f"The broker at {self._options.bootstrap_servers} answers.")
        if not there:
            step = "Nothing to do. If the user may not create topics, create it with retention.ms=-1."
            yield Diagnosis("ok", self._name, f"There is no topic {topic.name} yet. The first reject creates it.", step)
            return
        settings = topic.settings()
        if "compact" in settings.get("cleanup.policy", ""):
            text = f"The topic {topic.name} is compacted, so it would lose rejected records."
            yield Diagnosis("error", self._name, text, "Set its cleanup.policy to delete.")
        limits = [key for key in ("retention.ms", "retention.bytes") if settings.get(key, "-1") != "-1"]
        if limits:
            text = f"The topic {topic.name} deletes rejected records by itself, by {' and '.join(limits)}."
            step = f"Set {', '.join(f'{key}=-1' for key in limits)} with kafka-configs."
            yield Diagnosis("warning", self._name, text, step)
        copies = topic.copies()
        if self._production and copies < COPIES:
            text = f"The topic {topic.name} has a replication factor of {copies}."
            step = f"Raise it to {COPIES} with kafka-reassign-partitions, and set min.insync.replicas=2."
            yield Diagnosis("warning", self._name, text, step)
