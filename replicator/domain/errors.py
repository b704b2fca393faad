"""Errors the whole program agrees on.

There are three kinds of failure. A *retryable* one may pass by itself. A *fatal* one stops a lane or the program
and carries the exit code. A *reject* is not an exception at all: it is a row with a reason (see `Reject`).
An exception of any other class is treated as fatal: nothing unknown is retried for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from .position import Position


class ExitCode(IntEnum):
    """What the process tells its caller."""

    OK = 0
    RUNTIME = 1
    CONFIG = 2
    ENVIRONMENT = 3
    DATA_LOSS = 4
    FENCED = 5
    REJECTS = 6


class ReplicatorError(Exception):
    """Base of every error raised on purpose.

    `sentence` says what happened, `next_step` what the operator can do; neither holds a row's values or a secret.
    """

    exit_code = ExitCode.RUNTIME

    def __init__(self, sentence: str, *, next_step: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.next_step = next_step

    def __str__(self) -> str:
        stop = "" if not (self.sentence and self.next_step) or self.sentence.endswith((".", "!", "?", ":", "\n")) else "."
        return f"{self.sentence}{stop} {self.next_step}".strip()


class Retryable(ReplicatorError):
    """May pass by itself (a server away, a lost connection, a lost race for a commit): try the same work again."""


class RowsWait(ReplicatorError):
    """The target refuses rows for what other rows hold, and that may pass: a parent is yet to come, a child is yet to go, or
    a row is yet to give up a unique value. Nothing was committed. `lanes`: whose rows these are."""

    def __init__(self, sentence: str, lanes: tuple[str, ...]) -> None:
        super().__init__(sentence)
        self.lanes = lanes


class Fatal(ReplicatorError):
    """Trying again would give the same result. Suspends the lane it is raised in, or stops the process."""


class DecoderDied(Fatal):
    """What decoded some records is gone without an answer, as this process itself would be had they been decoded in it."""


class EnvironmentProblem(Fatal):
    """Something outside the program is missing or wrong: a server, a role, a Java runtime, a folder."""

    exit_code = ExitCode.ENVIRONMENT


class ConfigProblem(Fatal):
    """The configuration asks for what cannot be done; `next_step` names the line to change."""

    exit_code = ExitCode.CONFIG


class DataLoss(Fatal):
    """Going on would silently skip or double changes, so nothing goes on; `next_step` names the accepting command."""

    exit_code = ExitCode.DATA_LOSS


class AlreadyWritten(DataLoss):
    """A target holds records that a lane has not written, and would have twice. `ends`: behind the last of each partition.
    `next_step` ends with a command that lets the lane go on there."""

    def __init__(self, sentence: str, *, lane: str, step: str, ends: Position) -> None:
        super().__init__(sentence, next_step=f"{step}: `replicator lanes skip {lane} --until {ends.to_option()}`.")
        self._lane, self._step, self._ends = lane, step, ends

    def for_partitions(self, begun: Position) -> AlreadyWritten:
        """The same error, whose command names the partitions that the lane reads, which began there for it."""
        ends = Position({place: end for place, end in self._ends.items() if begun.get(place, end) < end})
        return AlreadyWritten(self.sentence, lane=self._lane, step=self._step, ends=ends)


class Fenced(Fatal):
    """Another instance writes this lane. The loser stops and never finishes what it began."""

    exit_code = ExitCode.FENCED


class TooManyRejects(Fatal):
    """More records were rejected than `max_rejects` allows."""

    exit_code = ExitCode.REJECTS


class RejectCode:
    """Stable reason codes of rejected records."""

    MALFORMED = "MALFORMED"  # bytes are not what the configured format says
    UNKNOWN_OPERATION = "UNKNOWN_OPERATION"
    NULL_KEY = "NULL_KEY"  # a key column is missing or NULL
    NO_SEQUENCE = "NO_SEQUENCE"  # the record carries no log position
    SEQUENCE = "SEQUENCE"  # a column that the configuration orders changes by holds nothing
    OUT_OF_RANGE = "OUT_OF_RANGE"  # a value does not fit its column
    INCOMPLETE = "INCOMPLETE"  # values were not sent and there is no row to take them from
    LATE = "LATE"  # its event time lies below the watermark of its lane, or its key may have been deleted since
    TOO_LARGE = "TOO_LARGE"
    HELD = "HELD"  # a record of its key before it was rejected, and is not replayed yet
    CRASHED = "CRASHED"  # decoding it ended the program, again and again: it was not decoded
    FORGOTTEN = "FORGOTTEN"  # in an event log, in place of the record of a row that was forgotten; never a dead letter
    NO_EVENT = "NO_EVENT"  # an event of an outbox that the store of events cannot keep
    AMBIGUOUS = "AMBIGUOUS"  # a row left its key, and another one may have taken it before: the image does not tell
    UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA"  # the schema registry does not have the schema that the record names


@dataclass(frozen=True, slots=True)
class Reject:
    """Why one record was not applied: a stable `code` and a `sentence` for people, without any value of the row."""

    code: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.code}: {self.sentence}"

    @classmethod
    def parse(cls, text: str) -> Reject:
        """Read what `str` wrote; text without a code counts as malformed input."""
        code, found, sentence = text.partition(": ")
        return cls(code, sentence) if found else cls(RejectCode.MALFORMED, text)


AMBIGUOUS_DELETE = Reject(
    RejectCode.AMBIGUOUS,
    "the row that has this key is not the one that the record shows, and nothing tells which of the two left the key: "
    "another row may have taken it earlier in the transaction, or the image may not be the row's",
)
"""Of the delete half of a key change."""
