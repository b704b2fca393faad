"""Errors of the whole program.

There are three kinds of failure. A *retryable* one may pass by itself. A *fatal* one stops a lane or the program and
carries the exit code. A *reject* is not an exception: it is a row with a reason (see `Reject`). An exception of any
other class is treated as fatal: unknown errors are not retried forever.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from .position import Position


class ExitCode(IntEnum):
    """The exit codes of the process."""

    OK = 0
    RUNTIME = 1
    CONFIG = 2
    ENVIRONMENT = 3
    DATA_LOSS = 4
    FENCED = 5
    REJECTS = 6
    DIFFERENT = 7


class ReplicatorError(Exception):
    """Base of every error raised on purpose.

    `sentence` describes the problem, `next_step` what the operator can do. Neither contains a row's values or a secret.
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
    """The target refuses rows because of other rows, for now. A parent row does not exist yet, a child row still
    exists, or a unique value is still in use. Nothing was committed. `lanes`: the lanes of these rows."""

    def __init__(self, sentence: str, lanes: tuple[str, ...]) -> None:
        super().__init__(sentence)
        self.lanes = lanes


class Fatal(ReplicatorError):
    """A retry would give the same result. Suspends the lane in which it is raised, or stops the process."""


class DecoderDied(Fatal):
    """The process that decoded some records died without an answer. Decoding them in this process would end it too."""


class EnvironmentProblem(Fatal):
    """Something outside the program is missing or wrong: a server, a role, a Java runtime, a folder."""

    exit_code = ExitCode.ENVIRONMENT


class ConfigProblem(Fatal):
    """The configuration requests something impossible; `next_step` names the line to change."""

    exit_code = ExitCode.CONFIG


class DataLoss(Fatal):
    """Continuing would silently skip or double changes, so the lane stops; `next_step` names the command that accepts
    it."""

    exit_code = ExitCode.DATA_LOSS


class AlreadyWritten(DataLoss):
    """A target holds records that the lane has not written and would write twice. `ends`: per partition the offset
    after the last record. `next_step` ends with a command that lets the lane continue there."""

    def __init__(self, sentence: str, *, lane: str, step: str, ends: Position) -> None:
        super().__init__(sentence, next_step=f"{step}: `replicator lanes skip {lane} --until {ends.to_option()}`.")
        self._lane, self._step, self._ends = lane, step, ends

    def for_partitions(self, begun: Position) -> AlreadyWritten:
        """The same error, with a command for the partitions that the lane reads; they began at `begun` for it."""
        ends = Position({place: end for place, end in self._ends.items() if begun.get(place, end) < end})
        return AlreadyWritten(self.sentence, lane=self._lane, step=self._step, ends=ends)


class Fenced(Fatal):
    """Another instance writes this lane. The loser stops and never finishes its work."""

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
    SEQUENCE = "SEQUENCE"  # a column of `sequence_by` is NULL or was not sent
    OUT_OF_RANGE = "OUT_OF_RANGE"  # a value does not fit its column
    INCOMPLETE = "INCOMPLETE"  # it has unchanged values, and there is no row to read them from
    LATE = "LATE"  # its event time is below the watermark of its lane, or its key may have been deleted since
    TOO_LARGE = "TOO_LARGE"
    HELD = "HELD"  # an earlier record of its key was rejected, and is not retried yet
    CRASHED = "CRASHED"  # decoding it ended the program repeatedly, so it was not decoded
    FORGOTTEN = "FORGOTTEN"  # in an event log, in place of the record of an erased row; never a dead letter
    NO_EVENT = "NO_EVENT"  # an event of an outbox that the event store cannot store
    AMBIGUOUS = "AMBIGUOUS"  # a row left its key, and another row may have had the key before: the image does not show which
    UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA"  # the schema registry does not have the schema id of the record

    @classmethod
    def list_all(cls) -> list[str]:
        """All codes of this program. A decoder may have others."""
        return sorted(code for name, code in vars(cls).items() if name.isupper())


@dataclass(frozen=True, slots=True)
class Reject:
    """The reason why one record was not applied: a stable `code` and a `sentence` for people, without any value of the
    row."""

    code: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.code}: {self.sentence}"

    @classmethod
    def parse(cls, text: str) -> Reject:
        """Parse the text of a reject; text without a code counts as malformed input."""
        code, found, sentence = text.partition(": ")
        return cls(code, sentence) if found else cls(RejectCode.MALFORMED, text)


AMBIGUOUS_DELETE = Reject(
    RejectCode.AMBIGUOUS,
    "the target's row with this key differs from the before image in the record, so it is unknown which row to delete. "
    "Another row may have got the key earlier in the transaction, or the image may belong to another row",
)
"""The reject of the delete half of a key change."""
