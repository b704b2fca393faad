"""Base class of sources for immutable files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from pydantic import ValidationError

from replicator.domain.errors import ConfigProblem, DataLoss
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Stop

from ....decoders.common.csv_dialect import CsvDialect
from ....object_store.files import StoredPath
from ..delivery_progress import DeliveryProgress
from ..file_list import ArchiveFile
from ..offset_index import OffsetIndex
from ..source import ArchiveSource
from ..stable_files import seconds_until_complete
from .file_selection import OF_ANY, Naming, select_beyond, select_through, summarise

CSV = "csv"


def read_dialect(said: object) -> CsvDialect:
    """The CSV dialect. Raises ConfigProblem that names every wrong key."""
    try:
        return CsvDialect.model_validate(said or {})
    except ValidationError as error:
        wrong = "; ".join(f"csv.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False))
        raise ConfigProblem(f"The options of a source of files are not valid: {wrong}.") from None


class ImmutableFilesSource(ArchiveSource):
    """`ArchiveSource` for files that never change after they were written, and whose names define their order. Subclasses
    define `naming` and `read_options`.

    A file is complete when it was not written for `stable_files.SETTLED_SECONDS`. Until then, later files of its table
    wait. Keep at least the newest file of every table: without any, the table counts as removed. A file that appears
    before others that were read, or whose size changed, is a DataLoss.
    """

    naming: ClassVar[Naming]
    has_sparse_offsets = True  # The upper bits contain the file.

    def __init__(self, options: Mapping[str, object]) -> None:
        self._given: dict[str, ArchiveFile] = {}
        self._newest: dict[TopicPartition, int] = {}
        self._settled_at = float("inf")
        super().__init__(options)

    def run(self, start: Position, apply_batch: Any, stop: Stop, *, once: bool) -> None:
        """See the port. With `once`, up to the end of the files at the start, when they are complete."""
        if once:
            mine = {file.label for file in self._list_requested()}
            waiting = self._delivery(DeliveryProgress(start), apply_batch, stop)
            while (
                left := max((self._seconds_until_stable(f) for f in self._list_files() if f.label in mine), default=0.0)
            ) > 0:
                if stop.wait(min(left, 1.0)):
                    return
                waiting.flush(even_empty=True)  # An empty batch shows the caller that the source is alive.
        super().run(start, apply_batch, stop, once=once)

    def read(self, start: Position, until: Position, apply_batch: Any, stop: Stop) -> None:
        """See the port. Waits until the files are complete: a missing file would count as a hole."""
        while (
            left := max(
                (self._seconds_until_stable(f) for f in self._list_requested() if self._is_below(f, until)), default=0.0
            )
        ) > 0:
            if stop.wait(min(left, 1.0)):
                return
        super().read(start, until, apply_batch, stop)

    def _is_below(self, file: ArchiveFile, until: Position) -> bool:
        place = self.naming.place_of(file.path)
        end = max(until.values(), default=0) if place.topic == OF_ANY else until.get(place, 0)
        return self.naming.first_of(file.path) < end

    def _files(self, start: Position) -> list[ArchiveFile]:
        """The complete files, for each table up to the first incomplete one. Raises DataLoss for a file whose size
        changed after it was returned before, and for a file before others that were returned."""
        found = list(self._select_complete(self._list_requested()))
        self._refuse_late([file for file in found if self._given and file.label not in self._given])
        for file in found:
            self._newest[self.naming.place_of(file.path)] = self.naming.first_of(file.path)
            before = self._given.setdefault(file.label, file)
            if (change := _describe_change(before, file)) is not None:
                raise DataLoss(
                    f"{file.path} {change}: files are written once",
                    next_step="If the table was loaded again, load it here too, with `replicator lanes resync LANE`.",
                )
        return select_beyond(found, start, self.naming)

    def _list_requested(self) -> list[ArchiveFile]:
        files, names = self._list_files(), self._options.through
        return files if names is None else select_through(files, names, self.naming)

    def _update_index(self) -> OffsetIndex:
        return summarise(self._known, self._list_files(), self.naming)

    def _seconds_until_due(self) -> float:
        return max(0.0, self._settled_at - time.monotonic())

    def _select_complete(self, files: Iterable[ArchiveFile]) -> Iterator[ArchiveFile]:
        behind: set[TopicPartition] = set()
        self._settled_at = float("inf")
        for file in files:
            place, left = self.naming.place_of(file.path), self._seconds_until_stable(file)
            if left > 0:
                self._settled_at = min(self._settled_at, time.monotonic() + left)
            # A transaction file may contain any table.
            of_any = TopicPartition(OF_ANY, 0)
            if left <= 0 and not behind & {place, of_any} and (place != of_any or not behind):
                yield file
            else:
                behind.add(place)

    def _seconds_until_stable(self, file: ArchiveFile) -> float:
        return seconds_until_complete(file, self._options.settle)

    def _refuse_late(self, fresh: Iterable[ArchiveFile]) -> None:
        for file in fresh:
            place = self.naming.place_of(file.path)
            table = place.topic
            if self.naming.first_of(file.path) < self._newest.get(place, -1):
                what = f"later files of table {table}" if table else "later files of transactions"
                raise DataLoss(
                    f"{file.path} appeared after {what} had been read",
                    next_step="Load the table again with `replicator lanes resync LANE` before the next start. After a "
                    "restart it is not known any more that the file was not read.",
                )


def _describe_change(before: ArchiveFile, now: ArchiveFile) -> str | None:
    """The difference between `now` and the file that was read; None if none. A local copy of the same size is equal."""
    if before.size != now.size:
        return f"had {format_count(before.size, 'byte')} when it was read, and has {now.size} now"
    if isinstance(now.path, StoredPath) and before.stamp[0] != now.stamp[0]:
        return "was replaced after it was read"
    return None
