"""Delta tables as sources: an event log as the topics that it recorded, or (`format: rows`) the rows of any table."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from replicator.domain.errors import ReplicatorError, describe_reload_or_skip
from replicator.domain.patterns import TopicFilter
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position
from replicator.ports.adapter_options import ROWS
from replicator.ports.runtime import Check, Diagnosis

from ..event_log import ACCEPT, describe_loss
from .delta_options import DeltaSourceSettings
from .delta_table.source import RowsSource
from .delta_table.splits import parse_offset
from .event_log.delta_log import DeltaLog
from .event_log.delta_source import DeltaSource


def delta_source(options: DeltaSourceSettings | Mapping[str, Any]) -> DeltaSource | RowsSource:
    """The source for the configured `format`."""
    settings = DeltaSourceSettings.read(options)
    return RowsSource(settings) if settings.format == ROWS else DeltaSource(settings)


# Checks of Delta sources for `doctor`: the table exists, is readable, and has the requested topics and positions.


OF_EVERY_SOURCE = ("positions", "production")
"""Options that the checks of all sources get."""


def delta_source_check(name: str, options: Mapping[str, Any]) -> Check:
    """The check of the source that `delta_source` builds from these options."""
    return RowsCheck(name, options) if options.get("format") == ROWS else DeltaSourceCheck(name, options)


class TableCheck(ABC):
    """`ports.runtime.Check` of a source over a table. `positions`: the positions of the lanes that read it."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._own = {key: value for key, value in options.items() if key not in OF_EVERY_SOURCE}
        self._positions: Mapping[str, Any] = options.get("positions") or {}

    def diagnose(self) -> Sequence[Diagnosis]:
        try:
            return list(self._check_table())
        except ReplicatorError as problem:
            return [Diagnosis("error", self._name, problem.sentence, problem.next_step)]

    @abstractmethod
    def _check_table(self) -> Iterator[Diagnosis]:
        """The diagnoses. May also raise errors, which become diagnoses."""


class DeltaSourceCheck(TableCheck):
    """Check of `DeltaSource`, with its options."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, options)
        self._options = DeltaSourceSettings.read(self._own)

    def _check_table(self) -> Iterator[Diagnosis]:
        topics = TopicFilter(self._options.topics or ("*",))
        every = self._open_log(lambda _: True).read_snapshot()
        unmatched = topics.find_unmatched({file.topic for file in every.files})
        if unmatched:
            step = "It is read as soon as the log has it; or correct `topics`."
            yield Diagnosis("warning", self._name, f"The event log has no topic that matches {', '.join(unmatched)}.", step)
        paths = (file.path for file in every.files if topics(file.topic))
        closed = [path for path in paths if isinstance(path, Path) and not os.access(path, os.R_OK)]
        if closed:
            yield Diagnosis("error", self._name, f"{closed[0]} cannot be read.", f"Let user {os.geteuid()} read it.")
            return
        log = self._open_log(topics)
        _, bounds = log.read_latest()
        for lane, position in self._positions.items():
            positions = Position.from_json(position)
            for partition in (partition for partition in positions if topics(partition.topic)):
                if sentence := describe_loss(bounds, partition, positions[partition]):
                    yield Diagnosis("error", self._name, f"Lane {lane} cannot continue: {sentence}", ACCEPT)
        if not unmatched:
            yield Diagnosis("ok", self._name, f"The event log {log.root} has {format_count(len(every.files), 'file')}.")

    def _open_log(self, topics: Callable[[str], bool]) -> DeltaLog:
        return DeltaLog(self._options.path or "", topics, self._options.storage)


class RowsCheck(TableCheck):
    """Check of `RowsSource`, with its options."""

    def _check_table(self) -> Iterator[Diagnosis]:
        options = DeltaSourceSettings.read(self._own)
        if options.path is None:
            yield Diagnosis("warning", self._name, f"The table {options.table} is Spark's to find: it was not looked at.")
            return
        source = RowsSource(options)
        for lane, position in self._positions.items():
            for sentence in source.losses(Position.from_json(position), {}).values():
                yield Diagnosis("error", self._name, f"Lane {lane} cannot continue: {sentence}", describe_reload_or_skip())
        [(partition, end)] = source.end().items()
        sentence = f"The table {partition.topic} is at version {parse_offset(end).version - 1}."
        yield Diagnosis("ok", self._name, sentence)
