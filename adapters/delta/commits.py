"""Commits of a lane: data and position together, each exactly once. Position files, and positions by version.

delta-rs accepts a transaction with an old version, and drops the transaction of a merge that changes nothing.
So the version is read from the snapshot that commits, and a commit without changes becomes an empty append.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4
from weakref import ref

from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from replicator.domain.errors import DataLoss, Fatal, Fenced
from replicator.domain.policy.plan import LaneState, state_from_json, state_to_json
from replicator.domain.position import Position, Span, TopicPartition

from .errors import first_line, is_damage, is_newer, translate_error
from .folders import Folder
from .tables import open_table, read_schema, unwritable_error

RECENT = 100
WRITER = WriterProperties(compression="SNAPPY")


@dataclass(frozen=True, slots=True)
class Attempt:
    """The metadata of one attempt to commit.

    - `app`, `commit_number`: the lane's application id and transaction version.
    - `name`: identifies the attempt.
    - `table`: the folder of the table.
    - `position_text`: the lane's position after the commit (`encode_position`), if it belongs
      to a lane.
    """

    app: str
    commit_number: int
    name: str
    table: Folder
    position_text: str = ""

    @property
    def properties(self) -> CommitProperties:
        """The metadata for delta-rs, which must not retry by itself."""
        return self.with_transactions(())

    def with_transactions(self, more: Sequence[Transaction]) -> CommitProperties:
        """`properties`, with transactions of other applications in the same commit."""
        own = Transaction(self.app, self.commit_number, int(time.time() * 1000))
        return CommitProperties(custom_metadata=self._metadata, max_commit_retries=0, app_transactions=[own, *more])

    @property
    def text(self) -> str:
        """The metadata for Spark, which accepts one text."""
        return json.dumps(self._metadata) if self.position_text else self.name

    @property
    def _metadata(self) -> dict[str, str]:
        return {ATTEMPT: self.name, **({POSITION_METADATA: self.position_text} if self.position_text else {})}


Operation = Callable[[DeltaTable, Attempt], None]
"""Writes rows to the given snapshot, in one commit with the metadata of the attempt, or makes no commit.

The snapshot is current afterwards. Raises `LostRace` when another writer committed first.
"""


def append_nothing(snapshot: DeltaTable, attempt: Attempt) -> None:
    """An `Operation` that changes no row."""
    write_deltalake(snapshot, read_schema(snapshot).empty_table(), mode="append", commit_properties=attempt.properties)


class LostRace(Exception):
    """Another writer committed to the table first, for another lane: repeat the write on a new snapshot."""


class LaneLog:
    """The transactions of one lane in one table. `nothing` commits no rows. Not safe for use from several
    threads."""

    def __init__(
        self, path: Folder, pipeline: str, lane: str, positions: PositionFiles, nothing: Operation = append_nothing
    ) -> None:
        self._path = path
        self._nothing = nothing
        self._lane = lane
        self._app = f"replicator/{pipeline}/{lane}"
        self._positions = positions
        self.announced: int | None = None
        """The number of the last attempt, with any result; None before the first."""
        self._read: tuple[ref[DeltaTable], int, int] | None = None
        """The snapshot, its version, and the number that was read last: delta-rs reads the log again for each question."""

    def open(self) -> DeltaTable:
        """The table's newest snapshot.

        Raises DataLoss when its log cannot be read, and Fatal when the log needs a newer program.
        """
        try:
            return open_table(self._path)
        except DeltaError as error:
            if is_newer(error):
                raise unwritable_error(self._path.name, f"something new ({first_line(error)})") from error
            if not is_damage(error):
                raise
            raise DataLoss(
                f"the log of the Delta table {self._path} is damaged: {first_line(error)}",
                next_step=f"Restore it from a copy. Or stop the daemon, remove the folder {self._path}, and load the table "
                f"again with `replicator lanes resync {self._lane}`.",
            ) from error

    def is_behind(self, snapshot: DeltaTable) -> bool:
        """True when the table has newer commits than `snapshot`."""
        return bool(self.open().version() != snapshot.version())

    def read_commit_number(self, snapshot: DeltaTable) -> int:
        """The number of this lane's commits in `snapshot`."""
        if self._read is None or self._read[0]() is not snapshot or self._read[1] != snapshot.version():
            self._read = ref(snapshot), snapshot.version(), snapshot.transaction_version(self._app) or 0
        return self._read[2]

    def read_version_positions(self, snapshot: DeltaTable) -> Iterator[tuple[int, Position]]:
        """The versions of the table, the newest first, with the lane's position, if the commit contains it."""
        return read_version_positions(snapshot, self._app)

    def state(self, snapshot: DeltaTable) -> LaneState | None:
        """The lane's state in `snapshot`; None when it never committed, or was reset."""
        number = self.read_commit_number(snapshot)
        return self._positions.read_record(number).state if number else None

    def commit(self, snapshot: DeltaTable, state: LaneState | None, span: Span | None, write: Operation | None) -> int:
        """Commits the rows of `write` and `state` together, on exactly this snapshot, which is current
        afterwards.

        Returns the number of the commit. Raises:

        - `LostRace` when the table has newer commits; nothing was committed.
        - `Fenced` when the lane has newer commits.
        - The translated error when the commit failed for another reason.

        An error is ignored if the commit turns out to exist. After any raised error the snapshot is invalid.
        """
        before = self.read_commit_number(snapshot)
        if self._positions.has_file_of_commit(before + 1):
            self._refuse_newer_commit(before)
        announced = self._positions.announce(before + 1, state, span)
        self.announced = announced.commit_number
        position = encode_position(self._app, state)
        attempt = Attempt(self._app, announced.commit_number, announced.attempt, self._path, position)
        try:
            if write is not None:
                write(snapshot, attempt)
            if self.read_commit_number(snapshot) == before:
                self._nothing(snapshot, attempt)
        except (DeltaError, OSError) as error:
            if not self._has_landed(before, attempt.name):
                if isinstance(error, CommitFailedError):
                    raise LostRace from error
                raise translate_error(error, self._path.name) from error
            snapshot.update_incremental()
        return attempt.commit_number

    def prune(self, commit_number: int) -> None:
        """Removes position files that are older than the commit `commit_number` needs."""
        self._positions.prune(commit_number)

    def _has_landed(self, before: int, attempt: str) -> bool:
        """True when our attempt is in the table. Raises `Fenced` when the attempt of another instance is."""
        attempts = (f"{entry.get(ATTEMPT)} {entry.get(USER_METADATA)}" for entry in self.open().history(RECENT))
        if any(attempt in text for text in attempts):
            return True
        self._refuse_newer_commit(before)
        return False

    def _refuse_newer_commit(self, before: int) -> None:
        """Raises Fenced when the lane has committed after `before`."""
        now = self.read_commit_number(self.open())
        if now > before:
            raise Fenced(
                f"another instance has written lane {self._lane}: its version is {now}, not {before}",
                next_step="Stop one of the two instances.",
            )


def removal_app_id(partition: TopicPartition) -> str:
    """The application of the transaction that stores the offset below which a partition's records were deleted."""
    return f"replicator/removed/{partition.topic}/{partition.partition}"


# Position files: one per commit, named by the txn version that makes it valid.
#
# File n is written before the commit with txn version n. A file without its commit is from a failed attempt, or
# from one that may still commit. The holder of the lane's lock replaces such an orphan.
#
# Without locks (in an object store) a number belongs to the writer that created its file, and others use the next
# number. A file is written once, and describes the commit of its number.

KEPT_FILES = 20
FORMAT = 1


@dataclass(frozen=True, slots=True)
class PositionRecord:
    """The content of the position file of commit `commit_number`.

    `state` is None after a reset. `attempt` is also in the commit, and distinguishes it from other attempts at
    this commit.
    """

    commit_number: int
    state: LaneState | None
    span: Span | None
    attempt: str


class PositionFiles:
    """The position files of one lane in `folder`. The caller holds the lane, except for `read_record`."""

    def __init__(self, folder: Folder, lane: str) -> None:
        self._folder = folder
        self._lane = lane

    def announce(self, commit_number: int, state: LaneState | None, span: Span | None) -> PositionRecord:
        """Writes the file of a commit before the commit; durable on return.

        Its number is `commit_number`, or a later one if this writer may not replace that file.
        """
        attempt = uuid4().hex
        text = {
            "format": FORMAT,
            "attempt": attempt,
            "state": None if state is None else state_to_json(state),
            "span": None if span is None else span.to_json(),
        }
        while not self._folder.claim(_file_name(commit_number), text):
            commit_number += 1
        return PositionRecord(commit_number, state, span, attempt)

    def has_file_of_commit(self, commit_number: int) -> bool:
        """True when file `commit_number` exists: of a commit, or an orphan."""
        return self._folder.has_file(_file_name(commit_number))

    def read_record(self, commit_number: int) -> PositionRecord:
        """File `commit_number`, whose commit the caller has read. Raises DataLoss when it is missing or damaged."""
        try:
            data = json.loads(self._folder.load(_file_name(commit_number)))
            if data["format"] > FORMAT:
                raise Fatal(
                    f"position file {commit_number} of lane {self._lane} has format {data['format']}, "
                    "which a newer version wrote",
                    next_step="Run that version of Replicator.",
                )
            state, span = data["state"], data["span"]
            return PositionRecord(
                commit_number,
                None if state is None else state_from_json(state),
                None if span is None else Span.from_json(span),
                data["attempt"],
            )
        except FileNotFoundError as error:
            raise self._lost_error(commit_number, "is missing although its commit is there") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._lost_error(commit_number, "is damaged") from error

    def prune(self, commit_number: int) -> None:
        """Removes all but the newest files up to `commit_number`."""
        for file in self._folder.files():
            number = file.removesuffix(".json")
            if number.isdecimal() and int(number) <= commit_number - KEPT_FILES:
                self._folder.drop(file)

    def _lost_error(self, commit_number: int, fault: str) -> DataLoss:
        return DataLoss(
            f"position file {self._folder / _file_name(commit_number)} of lane {self._lane} {fault}",
            next_step=f"Restore it, or load the lane again with `replicator lanes resync {self._lane}`.",
        )


def _file_name(commit_number: int) -> str:
    return f"{commit_number}.json"


# The position of a lane at each version of its table, from the table's commits.

ATTEMPT = "replicatorAttempt"
"""The attempt in the commit's metadata. It identifies a commit whose answer was lost."""
POSITION_METADATA = "replicatorPosition"
"""In the commit's metadata: the lane, and its position after the commit."""
USER_METADATA = "userMetadata"
"""The key under which Spark stores a writer's commit metadata."""
SAME_ROWS = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END"})
"""Operations whose versions have the rows of the version before."""


def encode_position(app: str, state: LaneState | None) -> str:
    """The position in a lane's commit; null after a reset."""
    return json.dumps([app, None if state is None else state.position.to_json()], separators=(",", ":"))


def read_version_positions(table: DeltaTable, app: str) -> Iterator[tuple[int, Position]]:
    """Versions of the table with the position of the lane `app`, the newest first.

    They are the lane's commits, and compactions and vacuums after them. Other commits may change rows, so their
    versions are left out.
    """
    versions: list[tuple[int, Position]] = []
    at: Position | None = None
    for entry in sorted(table.history(), key=lambda entry: entry["version"]):
        text = entry.get(POSITION_METADATA)
        if text is None and POSITION_METADATA in str(entry.get(USER_METADATA)):
            text = json.loads(entry[USER_METADATA])[POSITION_METADATA]
        lane, position = (None, None) if text is None else json.loads(text)
        if lane == app:
            at = None if position is None else Position.from_json(position)
        elif entry.get("operation") not in SAME_ROWS:
            at = None
        if at is not None:
            versions.append((entry["version"], at))
    yield from reversed(versions)
