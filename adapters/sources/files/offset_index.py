"""Offsets in the files of an archive."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pyarrow as pa

from replicator.domain.position import TopicPartition

from .archive_records import PSEUDO_TOPIC, ArchiveRecord
from .file_format import FileFormat
from .file_list import ArchiveFile
from .file_reader import ArchiveReader


class OffsetIndex:
    """First and last offset per partition. A file is read again only if it changed."""

    def __init__(self, form: FileFormat) -> None:
        self.firsts: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self._reading = ArchiveReader(form, self._add_record, self._add_frame, threading.Event())

    def update(self, files: Iterable[ArchiveFile]) -> OffsetIndex:
        """This index, updated with `files`."""
        for file in files:
            self._reading.read(file)
        return self

    def _add_record(self, record: ArchiveRecord, _label: str) -> None:
        self.add_range(record.place, record.offset, record.offset + 1)

    def _add_frame(self, chunk: pa.RecordBatch, _label: str) -> None:
        places = map(TopicPartition, chunk.column("topic").to_pylist(), chunk.column("partition").to_pylist())
        for place, offset in zip(places, chunk.column("offset").to_pylist(), strict=True):
            self.add_range(place, offset, offset + 1)

    def add_range(self, place: TopicPartition, first: int, end: int) -> None:
        """Add records of `place` from `first` up to `end`."""
        self.firsts[place] = min(first, self.firsts.get(place, first))
        self.ends[place] = max(end, self.ends.get(place, 0))


def describe_loss(summary: OffsetIndex, place: TopicPartition, offset: int) -> str:
    """The error for reading on from `offset`, or empty text. Holes are not detected, because offsets may have holes."""
    if place.topic.startswith(PSEUDO_TOPIC):
        return ""
    if place not in summary.ends:
        return f"The files hold no record of {place} (any more)."
    if offset < summary.firsts[place]:
        return f"Records {offset} to {summary.firsts[place] - 1} of {place} are not in the files: they begin later."
    if offset > summary.ends[place]:
        return f"Offset {offset} of {place} lies above the end of the files at {summary.ends[place]}: files are missing."
    return ""
