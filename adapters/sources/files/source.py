"""The archive source: recorded topics read back from files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from copy import copy
from typing import Any, Protocol

from replicator.domain.errors import DataLoss
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Stop

from .archive_records import PSEUDO_TOPIC
from .batch_builder import BatchBuilder
from .delivery_progress import DeliveryProgress
from .file_format import ArchiveFormat, FileFormat
from .file_list import ArchiveFile
from .file_reader import ArchiveReader, open_parquet
from .line_reader import LONGER
from .offset_index import OffsetIndex, describe_loss
from .options import ArchiveOptions
from .poller import FilePoller
from .stable_files import seconds_until_complete

TICK = 1.0
"""Seconds without a record after which an empty batch is handed over."""
RELOAD = "Put the missing files back, or reload the table with `replicator lanes resync LANE`."


class FileDelivery(Protocol):
    """What delivers the records of files in batches, once and in order, as a `DeliveryProgress` says."""

    def read(self, files: Iterable[ArchiveFile]) -> None:
        """Take what is new in `files`, and hand over every batch that is full."""

    def flush(self, *, even_empty: bool = False) -> bool:
        """Hand over what was gathered; nothing when there is nothing, unless `even_empty`. Whether it did."""


class LocalDelivery:
    """`FileDelivery` of Arrow tables."""

    def __init__(
        self, form: FileFormat, options: ArchiveOptions, delivered: DeliveryProgress, apply_batch: Any, *, stop: Stop
    ) -> None:
        self._batches = BatchBuilder(options, delivered, apply_batch)
        self._reading = ArchiveReader(form, self._batches.add_record, self._batches.add_frame, stop)
        self.flush = self._batches.flush

    def read(self, files: Iterable[ArchiveFile]) -> None:
        for file in files:
            self._reading.read(file)


class ArchiveSource:
    """A `Source` over files (`replicator.ports.source` is the contract); frames are `pyarrow.Table`.

    Files are read in the order of their names, and again when they grow or new ones appear. A record whose topic,
    partition and offset were delivered is not delivered again, whichever file it is in; one that turns up below records
    already delivered, in a hole between them, is a DataLoss. Keep at least the newest file of every topic: without any,
    the topic counts as gone. Offsets may begin anywhere and have holes, so records missing *between* those of an archive
    cannot be noticed; only what is missing before its first record can.

    A line that is no record is delivered as one: topic `archive:<file within the archive>`, partition 0, the line's
    number as offset, its bytes as value, and a header `replicator.error` that holds a `Reject` as text. A last line
    without its line end is a record if it can be read, and is otherwise waited for.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options, self._form = self.read_options(options)
        self._form.longest = LONGER * self._options.message_bytes
        self._known = self._new_index()

    @staticmethod
    def read_options(options: Mapping[str, object]) -> tuple[ArchiveOptions, FileFormat]:
        """The options, and what the files hold. ConfigProblem naming each wrong key."""
        return ArchiveOptions.read(options), ArchiveFormat()

    def _new_index(self) -> OffsetIndex:
        # A form may know where it is in a file, and who asks for the end may do so while records are read.
        return OffsetIndex(copy(self._form))

    def _delivery(self, delivered: DeliveryProgress, apply_batch: Any, stop: Stop) -> FileDelivery:
        return LocalDelivery(self._form, self._options, delivered, apply_batch, stop=stop)

    def _list_files(self) -> list[ArchiveFile]:
        """Every file there is."""
        return self._form.files(self._options.place)

    def _files(self, _: Position) -> list[ArchiveFile]:
        """The files to be read now, to go on from that position; what holds nothing beyond it may be left out."""
        return self._list_files()

    def _seconds_until_due(self) -> float:
        """Seconds after which there may be more to be read, though nothing changes."""
        return float("inf")

    def _update_index(self) -> OffsetIndex:
        return self._known.update(self._list_files())

    def run(self, start: Position, apply_batch: Any, stop: Stop, *, once: bool) -> None:
        """As the port says; with `once` up to the end of the files as they are now."""
        with closing(FilePoller(self._options.place, deep=self._form.deep, every=self._options.look_every)) as watch:
            files = self._files(start)
            self._refuse_losses(self.losses(start, {}) if start else {})
            delivered = DeliveryProgress(start)
            delivered.announce(start)
            delivery = self._delivery(delivered, apply_batch, stop)
            while not stop.is_set():
                delivery.read(files)
                if stop.is_set() and self._options.is_whole:
                    return  # A part is not handed over.
                delivery.flush(even_empty=not stop.is_set())
                if once:
                    return
                files = self._files(start) if watch.wait(stop, TICK, due_in=self._seconds_until_due()) else []

    def read(self, start: Position, until: Position, apply_batch: Any, stop: Stop) -> None:
        """As the port says. The files are read from their beginning: an archive has no index."""
        asked = start.only(until)
        self._refuse_losses({**self.losses(until, {}), **self.losses(asked, {})})
        unread = until.only(p for p in until if asked.get(p, -1) < until[p])
        delivered = DeliveryProgress(asked.only(unread), unread)
        delivery = self._delivery(delivered, apply_batch, stop)
        delivery.read(self._files(asked))
        if not stop.is_set():
            delivered.close_until(unread)
            delivery.flush()

    @staticmethod
    def _refuse_losses(found: Mapping[TopicPartition, str]) -> None:
        if found:
            raise DataLoss(" ".join(sorted(set(found.values()))), next_step=RELOAD)

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:  # noqa: ARG002
        """As the port says; files have no identity. Positions of unreadable lines are never lost."""
        summary = self._update_index()
        return {p: sentence for p, offset in position.items() if (sentence := describe_loss(summary, p, offset))}

    def start(self) -> Position:
        """As the port says: the first offsets there are."""
        return Position(dict(self._update_index().firsts))

    def beginning(self) -> Position:
        """As the port says."""
        return self.start()

    def end(self) -> Position:
        """As the port says. Reads what is new in the files."""
        return Position(dict(self._update_index().ends))

    def absent(self) -> str:
        if self._list_files():
            return ""
        return f"{self._options.place} holds none whose name ends in {', '.join(self._form.suffixes)}."

    def damaged(self) -> Sequence[str]:
        """See `ports.source.NamesFiles`: Parquet files without their end. Of files that do not grow it is an error."""
        whole = (f for f in self._list_files() if f.name.endswith(".parquet") and seconds_until_complete(f, None) <= 0)
        return [str(f.path) for f in whole if open_parquet(f, self._form) is None] if self._form.growing else []

    def oldest(self) -> Position:
        return Position(
            {p: first for p, first in self._update_index().firsts.items() if not p.topic.startswith(PSEUDO_TOPIC)}
        )

    def committed(self, position: Position) -> None:
        """Nothing to publish: nobody else asks how far files were read."""

    def close(self) -> None:
        """Nothing is kept open between calls."""
