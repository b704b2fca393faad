"""An event log as `doctor` looks at it: there, readable, and with the topics that are asked for."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from replicator.domain.errors import ReplicatorError
from replicator.domain.position import Position
from replicator.domain.remedies import reload_or_skip
from replicator.domain.topics import TopicFilter
from replicator.ports.diagnosis import Check, Diagnosis

from ...event_logs.bounds import ACCEPT, lost
from . import ROWS
from .following import Log
from .options import DeltaSourceOptions
from .ranges import Ranges
from .rows.options import RowsOptions
from .rows.places import place_of
from .rows.source import RowsSource
from .table import EventLogTable

OF_EVERY_SOURCE = ("positions", "production")
"""What any source's check is told."""


def delta_source_check(name: str, options: Mapping[str, Any]) -> Check:
    """The check of the source that `delta_source` makes of these options."""
    return RowsCheck(name, options) if options.get("format") == ROWS else DeltaSourceCheck(name, options)


class LookingAtATable(ABC):
    """`ports.diagnosis.Check` of a source over a table; `positions` are those of the lanes that read it."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._own = {key: value for key, value in options.items() if key not in OF_EVERY_SOURCE}
        self._positions: Mapping[str, Any] = options.get("positions") or {}

    def diagnose(self) -> Sequence[Diagnosis]:
        """See `ports.diagnosis.Check.diagnose`."""
        try:
            return list(self._look())
        except ReplicatorError as problem:
            return [Diagnosis("error", self._name, problem.sentence, problem.next_step)]

    @abstractmethod
    def _look(self) -> Iterator[Diagnosis]:
        """What there is to say. May raise what says it as well."""


class DeltaSourceCheck(LookingAtATable):
    """The options of `DeltaSource`."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, options)
        self._options = DeltaSourceOptions.read(self._own)

    def _look(self) -> Iterator[Diagnosis]:
        wanted = TopicFilter(self._options.topics)
        every = self._log(lambda _: True).newest()
        unmatched = wanted.unmatched({file.topic for file in every.files})
        if unmatched:
            step = "It is read as soon as the log has it; or correct `topics`."
            yield Diagnosis("warning", self._name, f"The event log has no topic that matches {', '.join(unmatched)}.", step)
        mine = (file.path for file in every.files if wanted(file.topic))
        closed = [path for path in mine if isinstance(path, Path) and not os.access(path, os.R_OK)]
        if closed:
            yield Diagnosis("error", self._name, f"{closed[0]} cannot be read.", f"Let user {os.geteuid()} read it.")
            return
        log = self._log(wanted)
        _, bounds = Log(log, Ranges()).now()
        for lane, position in self._positions.items():
            places = Position.from_json(position)
            for place in (place for place in places if wanted(place.topic)):
                if sentence := lost(bounds, place, places[place]):
                    yield Diagnosis("error", self._name, f"Lane {lane} cannot go on: {sentence}", ACCEPT)
        if not unmatched:
            yield Diagnosis("ok", self._name, f"The event log {log.root} has {len(every.files)} files.")

    def _log(self, wanted: Callable[[str], bool]) -> EventLogTable:
        return EventLogTable(self._options.path, wanted, self._options.storage)


class RowsCheck(LookingAtATable):
    """The options of `RowsSource`."""

    def _look(self) -> Iterator[Diagnosis]:
        options = RowsOptions.read(self._own)
        if options.path is None:
            yield Diagnosis("warning", self._name, f"The table {options.table} is Spark's to find: it was not looked at.")
            return
        source = RowsSource(self._own)
        for lane, position in self._positions.items():
            for sentence in source.losses(Position.from_json(position), {}).values():
                yield Diagnosis("error", self._name, f"Lane {lane} cannot go on: {sentence}", reload_or_skip())
        [(place, end)] = source.end().items()
        sentence = f"The table {place.topic} is at version {place_of(end).version - 1}."
        yield Diagnosis("ok", self._name, sentence)
