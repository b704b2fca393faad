"""The archive source: recorded topics from files."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from glob import has_magic
from pathlib import Path
from typing import Any, ClassVar

from watchfiles._rust_notify import RustNotify

from replicator.domain.errors import ReplicatorError, refuse_losses
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Stop
from replicator.ports.runtime import Diagnosis
from replicator.ports.source import SourceFeatures, SourceFiles

from ..file_options import ArchiveSettings, FileSourceOptions
from ..scan import open_session
from .delivery import DeliveryProgress, FileDelivery, LocalDelivery, OffsetIndex, describe_loss
from .file_list import LONGER, ArchiveFile, FilesLocation, fixed_part, locate_files, seconds_until_complete
from .file_reader import PSEUDO_TOPIC, ArchiveFormat, FileFormat, open_parquet

TICK = 1.0
"""Seconds without a record after which an empty batch is delivered."""
RELOAD = "Put the missing files back, or reload the table with `replicator lanes resync LANE`."


class ArchiveSource:
    """A `Source` over files (`replicator.ports.source` is the contract). Its options, and those of the engine.

    Files are read in the order of their names, and again when they grow or new ones appear. A topic, partition and offset
    is delivered once, even if it is in several files. A record that appears in a hole below delivered ones is a DataLoss.
    Keep at least the newest file of every topic: without any, the topic counts as removed. Offsets may start anywhere and
    have holes. So records missing *between* others are not detected, only records missing before the first one.

    An unreadable line is delivered as a record of the topic `archive:<file within the archive>`, partition 0. The line
    number is its offset, and its bytes are the value. A header `replicator.error` has a `Reject` as text. A last line
    without a line end is a record if it is readable; otherwise the source waits for the rest.
    """

    model: ClassVar[type[FileSourceOptions]] = ArchiveSettings

    def __init__(self, options: FileSourceOptions | Mapping[str, Any]) -> None:
        own, self._spark = open_session(options)
        self._options = self.model.read(own)
        self._form = self.make_format(self._options)
        self._form.longest = LONGER * self._options.message_bytes
        if self._spark is None:
            # A copy, because a format may keep a read position, and `end` may be called while records are read.
            self._known = OffsetIndex(copy(self._form))
        else:
            from .spark import SparkOffsetIndex  # noqa: PLC0415 - an optional package

            self._known = SparkOffsetIndex(self._spark, self._form, self._options)

    @property
    def features(self) -> SourceFeatures:
        return SourceFeatures(files=SourceFiles(self.absent, self.damaged, self.oldest))

    @staticmethod
    def make_format(options: FileSourceOptions) -> FileFormat:  # noqa: ARG004 - Of other kinds of files.
        """The format of the files. ConfigProblem if the options do not name one."""
        return ArchiveFormat()

    def begin_delivery(self, delivered: DeliveryProgress, consume_batch: Any, stop: Stop) -> FileDelivery:
        """The delivery of one run, in frames of the engine."""
        if self._spark is None:
            return LocalDelivery(self._form, self._options, delivered, consume_batch, stop)
        from .spark import SparkDelivery  # noqa: PLC0415 - an optional package

        return SparkDelivery(self._spark, self._form, self._options, delivered, consume_batch, stop=stop)

    def _list_files(self) -> list[ArchiveFile]:
        return self._form.files(locate_files(self._options))

    def _files(self, _: Position) -> list[ArchiveFile]:
        """The files to read from that position. Files without newer records may be left out."""
        return self._list_files()

    def _seconds_until_due(self) -> float:
        """Seconds after which there may be new records without any change of files."""
        return float("inf")

    def _update_index(self) -> OffsetIndex:
        return self._known.update(self._list_files())

    def run(self, start: Position, consume_batch: Any, stop: Stop, *, once: bool) -> None:
        """See the port. With `once`, up to the end of the files at the start."""
        with closing(
            FilePoller(locate_files(self._options), deep=self._form.deep, every=self._options.look_seconds)
        ) as watch:
            files = self._files(start)
            refuse_losses(self.losses(start, {}) if start else {}, RELOAD)
            delivered = DeliveryProgress(start)
            delivered.announce(start)
            delivery = self.begin_delivery(delivered, consume_batch, stop)
            while not stop.is_set():
                delivery.read(files)
                if stop.is_set() and self._options.is_whole:
                    return  # A partial batch is not delivered.
                delivery.flush(even_empty=not stop.is_set())
                if once:
                    return
                files = self._files(start) if watch.wait(stop, TICK, due_in=self._seconds_until_due()) else []

    def read(self, start: Position, until: Position, consume_batch: Any, stop: Stop) -> None:
        """See the port. Files are read from the beginning: an archive has no index."""
        requested = start.only(until)
        refuse_losses({**self.losses(until, {}), **self.losses(requested, {})}, RELOAD)
        unread = until.only(p for p in until if requested.get(p, -1) < until[p])
        delivered = DeliveryProgress(requested.only(unread), unread)
        delivery = self.begin_delivery(delivered, consume_batch, stop)
        delivery.read(self._files(requested))
        if not stop.is_set():
            delivered.close_until(unread)
            delivery.flush()

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:  # noqa: ARG002
        """See the port. Files have no identity. Positions of unreadable lines are never lost."""
        summary = self._update_index()
        return {p: sentence for p, offset in position.items() if (sentence := describe_loss(summary, p, offset))}

    def start(self) -> Position:
        """See the port: the first available offsets."""
        return Position(dict(self._update_index().firsts))

    def beginning(self) -> Position:
        return self.start()

    def end(self) -> Position:
        """See the port. Reads new content of the files."""
        return Position(dict(self._update_index().ends))

    def absent(self) -> str:
        if self._list_files():
            return ""
        return f"{locate_files(self._options)} holds none whose name ends in {', '.join(self._form.suffixes)}."

    def damaged(self) -> Sequence[str]:
        """See `ports.source.SourceFiles`: incomplete Parquet files. For formats that do not grow they are an error."""
        whole = (f for f in self._list_files() if f.name.endswith(".parquet") and seconds_until_complete(f, None) <= 0)
        return [str(f.path) for f in whole if open_parquet(f, self._form) is None] if self._form.growing else []

    def oldest(self) -> Position:
        return Position(
            {p: first for p, first in self._update_index().firsts.items() if not p.topic.startswith(PSEUDO_TOPIC)}
        )

    def committed(self, position: Position) -> None:
        """Does nothing: positions are not published."""

    def close(self) -> None:
        """Does nothing: nothing stays open between calls."""


# Check of files for `doctor`: they exist, and are readable.

OF_EVERY_SOURCE = ("positions", "production")
"""Options that checks of all sources get and that files do not use."""


class FilesCheck:
    """`ports.runtime.Check` of a source of this class, with its options."""

    def __init__(self, source: type[ArchiveSource], name: str, options: Mapping[str, Any]) -> None:
        own = {key: value for key, value in options.items() if key not in OF_EVERY_SOURCE}
        self._name = name
        read = source.model.read(own)
        self._form, self._place = source.make_format(read), locate_files(read)

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


# Polling for new files: notifications of the operating system, and regular listing.


log = logging.getLogger(__name__)
STEP_MS, GATHER_MS = 50, 200
"""Changes within a step of each other are one notification, for at most `GATHER_MS`."""
AFTER = 0.5
"""Seconds after a change until files are listed again: writes into a new folder cause no notification."""


class FilePoller:
    """Watches `location`, including subfolders for `deep` and globs. Starts on creation, so no later change is missed.
    `every`: the longest time between two listings in seconds, as in object stores and folders of other machines; 0 lists
    always."""

    def __init__(self, location: FilesLocation, *, deep: bool, every: float) -> None:
        self._every = every
        self._due = time.monotonic() + self._every
        self._folder: Path | None = None
        if isinstance(location, str):
            path = Path(location)
            if path.exists():
                self._folder = path if path.is_dir() else path.parent
            else:
                self._folder = fixed_part(path) if has_magic(location) else path
        self._deep = deep or (isinstance(location, str) and has_magic(location))
        self._watched: tuple[RustNotify, int] | None = None
        self._renew()

    def wait(self, stop: Stop, seconds: float, *, due_in: float = float("inf")) -> bool:
        """Wait until files must be listed, for at most `seconds`, or until `stop`. Returns True if they must be.
        `due_in`: seconds after which they must be in any case."""
        now = time.monotonic()
        self._due = min(self._due, now + due_in)
        if self._has_changed(stop, max(0.0, min(seconds, self._due - now))):
            self._due = time.monotonic() + min(AFTER, self._every)
            return True
        if stop.is_set() or time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + self._every
        self._renew()
        return True

    def close(self) -> None:
        """Stop watching the folder."""
        if self._watched is not None:
            self._watched[0].close()
            self._watched = None

    def _has_changed(self, stop: Stop, seconds: float) -> bool:
        if self._watched is None:
            stop.wait(seconds)
            return False
        changes = self._watched[0].watch(GATHER_MS, STEP_MS, max(1, int(seconds * 1000)), stop)
        if changes == "signal":
            raise KeyboardInterrupt
        if isinstance(changes, str):
            return False
        if any(path == str(self._folder) for _, path in changes):
            # The folder was removed or replaced, maybe by one with the same inode number.
            self.close()
        return True

    def _renew(self) -> None:
        """Watch the current folder, which may have been replaced."""
        if self._folder is None:
            return
        try:
            inode = self._folder.stat().st_ino
            if self._watched is None or self._watched[1] != inode:
                self.close()
                notify = RustNotify([str(self._folder)], False, False, 0, self._deep, True)
                self._watched = (notify, inode)
        except OSError as error:
            # Listing reports errors of the folder; here they only prevent notifications.
            self.close()
            log.warning("%s is not watched (%s): it is looked through every %g s.", self._folder, error, self._every)
