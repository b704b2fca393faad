"""Which offsets the files of an archive hold."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pyarrow as pa

from replicator.domain.position import TopicPartition

from .form import Form
from .listing import ArchiveFile
from .reading import Reading
from .records import PSEUDO_TOPIC, Record


class Summary:
    """First and last offset per partition. A file is read again only when it changed."""

    def __init__(self, form: Form) -> None:
        self.firsts: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self._reading = Reading(form, self._record, self._frame, threading.Event())

    def over(self, files: Iterable[ArchiveFile]) -> Summary:
        """This summary, brought up to date with `files`."""
        for file in files:
            self._reading.read(file)
        return self

    def _record(self, record: Record, _label: str) -> None:
        self.see(record.place, record.offset, record.offset + 1)

    def _frame(self, chunk: pa.RecordBatch, _label: str) -> None:
        places = map(TopicPartition, chunk.column("topic").to_pylist(), chunk.column("partition").to_pylist())
        for place, offset in zip(places, chunk.column("offset").to_pylist(), strict=True):
            self.see(place, offset, offset + 1)

    def see(self, place: TopicPartition, first: int, end: int) -> None:
        """There are records of `place` from `first` to below `end`."""
        self.firsts[place] = min(first, self.firsts.get(place, first))
        self.ends[place] = max(end, self.ends.get(place, 0))


def lost(summary: Summary, place: TopicPartition, offset: int) -> str:
    """Why the files cannot be continued from `offset`, or nothing. Holes are not known: offsets may have them."""
    if place.topic.startswith(PSEUDO_TOPIC):
        return ""
    if place not in summary.ends:
        return f"The files hold no record of {place} (any more)."
    if offset < summary.firsts[place]:
        return f"Records {offset} to {summary.firsts[place] - 1} of {place} are not in the files: they begin later."
    if offset > summary.ends[place]:
        return f"Offset {offset} of {place} lies above the end of the files at {summary.ends[place]}: files are missing."
    return ""
