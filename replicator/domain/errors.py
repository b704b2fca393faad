"""Errors of the whole program.

There are three kinds of failure. A *retryable* one may pass by itself. A *fatal* one stops a lane or the program and
carries the exit code. A *reject* is not an exception: it is a row with a reason (see `Reject`). An exception of any
other class is treated as fatal: unknown errors are not retried forever."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from .position import Position, TopicPartition


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
        ends = Position({partition: end for partition, end in self._ends.items() if begun.get(partition, end) < end})
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
        code, separator, sentence = text.partition(": ")
        return cls(code, sentence) if separator else cls(RejectCode.MALFORMED, text)


AMBIGUOUS_DELETE = Reject(
    RejectCode.AMBIGUOUS,
    "the target's row with this key differs from the before image in the record, so it is unknown which row to delete. "
    "Another row may have got the key earlier in the transaction, or the image may belong to another row",
)
"""The reject of the delete half of a key change."""


# The nearest valid name to a mistyped one.

SYNONYMS = {
    "brokers": "bootstrap_servers",
    "servers": "bootstrap_servers",
    "connection": "dsn",
    "url": "dsn",
    "uri": "path",
    "location": "path",
    "folder": "path",
    "database_schema": "schema",
    "destinations": "to",
    "targets": "to",
    "target": "into",
    "group": "group_id",
    "consumer_group": "group_id",
    "name": "pipeline",
    "primary_key": "keys",
    "primary_keys": "keys",
    "pk": "keys",
    "scd_type": "stored_as_scd_type",
    "table": "match",
    "type": "kind",
    "connector": "transport",
    "dlq": "dead_letters",
    "dead_letter_queue": "dead_letters",
    "offset": "start_from",
    "auto_offset_reset": "start_from",
    "bind": "address",
    "host": "address",
}


def find_nearest(name: str, valid: Iterable[str]) -> str | None:
    """The name of `valid` that is most similar to `name`, or None. Case, `-` and `_` do not count."""
    plain = {_to_plain(candidate): candidate for candidate in valid}
    typed = _to_plain(name)
    if typed in plain:
        return plain[typed]
    synonym = _to_plain(SYNONYMS.get(name.lower().replace("-", "_"), ""))
    if synonym in plain:
        return plain[synonym]
    close = difflib.get_close_matches(typed, plain, n=1, cutoff=0.6)
    return plain[close[0]] if close else None


def suggest_name(name: str, valid: Iterable[str]) -> str:
    """`did you mean 'x'?` for the nearest valid name; empty when none is near."""
    best = find_nearest(name, valid)
    return f"did you mean '{best}'?" if best else ""


def _to_plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").strip()


# Next steps for rejected records, by code and sentence, and for lost records.

FIX_SOURCE = (
    "Correct the row at the source: its next change brings the targets up to date. Or delete the record: "
    "`replicator dlq purge`."
)
OTHER_FORMAT = "Compare the source's `format` with the records, and correct it."
ONE_PART = (
    "The source's `format` is right, but one part of the record, named in the reason, cannot be read. If this part is a "
    "column, and the records contain no schema, declare the columns under `schema` of the table. Then replay the record. "
    "Otherwise: " + FIX_SOURCE
)
WHOLE_RECORD = ("the record is not ", "it is JSON, but no object")
NAME_OPERATION = "Name the operation under `operations` of the source."
LOOKS_LIKE = re.compile(r"it looks like (`format: \w+`)")
WAITS_PATTERN = re.compile(r"\bit waits (for its row of|until)\b")
OTHER_NAME = re.compile(r"is missing, and the record has (.+) instead")
WRITE = re.compile(r"\bwrite (`[^`]+`)")
REMEDIES = {
    RejectCode.UNKNOWN_OPERATION: "The format has no such operation. " + FIX_SOURCE,
    RejectCode.NULL_KEY: "Name the key columns with `keys`, and replay the record. The lane may then be suspended, since "
    "its rows have another key: load it again with `replicator lanes resync LANE`. Or: " + FIX_SOURCE,
    RejectCode.NO_SEQUENCE: "The record has no position in the source's log, but other records of its table have one, so "
    "their order is unknown. " + FIX_SOURCE,
    RejectCode.SEQUENCE: "Name other columns in `sequence_by` (deletes need REPLICA IDENTITY FULL for it), and load the "
    "lane again with `replicator lanes resync LANE`. Or: " + FIX_SOURCE,
    RejectCode.OUT_OF_RANGE: "Give the column a wider type, in `schema` or in the target, or declare it as `string`. If "
    "the target exists and you changed a `cast`, build it again: `replicator replay TABLE`, or `replicator drop` and then "
    "`replicator run`. Then replay the record. Otherwise: " + FIX_SOURCE,
    RejectCode.INCOMPLETE: "Replay the record that created the row first, if it was rejected too. Or load the table again.",
    RejectCode.LATE: "Load the lane again with `replicator lanes resync LANE`. If the table has a `watermark`, set a "
    "longer one first. A longer `watermark` or `tombstone_retention` alone only helps later changes.",
    RejectCode.TOO_LARGE: "Raise the limit that the reason names, under `limits` (`message_bytes`, `columns`, `depth`), and "
    "replay the record.",
    RejectCode.CRASHED: "Report the crash with the record. Replay the record when a release can decode it.",
    RejectCode.NO_EVENT: "Correct the service: docs/how-to/store-outbox-events.md lists the required fields. Then have it "
    "write this event again under a new id. If the reason names a limit, raise it under `limits`, and replay the record.",
    RejectCode.AMBIGUOUS: "PostgreSQL: set `replica_identity: full` or `replica_identity: default` for the source, as the "
    "table has it (`\\d+ TABLE` in psql; docs/explanation/key-changes.md). Then replay the record. GoldenGate and DTS: look "
    "for the key in the source. If a row has it there, the target is right: `replicator dlq purge`. Otherwise delete the "
    "row of the target by hand, and replay the record.",
    RejectCode.UNKNOWN_SCHEMA: "If the connector registers its schemas elsewhere, correct `url` of the source's `registry`. "
    "Otherwise import the schema into the registry, with this id. Then replay the record.",
    RejectCode.HELD: "Replay the earlier rejected record of its key: `replicator dlq replay` replays both in order.",
}


GO_ON = (
    "Its lanes stop before it (`on_reject: stop_lane`), and read it again after a restart. To continue without "
    "it, set `on_reject` to continue or hold_key"
)
"""The beginning of a sentence about a rejected record."""
ACCEPT_MISSING = "accept-missing"
"""The option of `lanes resync`, and the word to the daemon, for loading a lane although rows will be missing."""


def describe_reload_or_skip(lane: str = "LANE", until: str = "", *, table: str = "TABLE", is_short: bool = False) -> str:
    """The commands for a lane whose next records are lost. `until`: the value of that option, if the command cannot
    find it. `table`: the table for a backfill; empty if there is none. `is_short`: as in `describe_reload`."""
    end = f" --until {until}" if until else ""
    skip = f"`replicator lanes skip {lane}{end}` accepts the loss"
    if table:
        skip += f"; then `replicator backfill {table}` loads the rows from the `database` of the source"
        skip += ", if it has one" if table == "TABLE" else ""
    steps = (
        (f"{skip}.", describe_reload(lane, is_short=True))
        if is_short
        else (describe_reload(lane).rstrip(".") + ";", f"{skip}.")
    )
    return " ".join(steps)


def refuse_losses(losses: Mapping[TopicPartition, str], next_step: str = "") -> None:
    """Raise DataLoss with all sentences in `losses`, if there are any. `next_step`: by default `describe_reload_or_skip`."""
    if losses:
        raise DataLoss(" ".join(sorted(set(losses.values()))), next_step=next_step or describe_reload_or_skip())


def describe_reload(lane: str, *, is_short: bool = False) -> str:
    """The command that empties a lane and loads it again. `is_short`: its source no longer has all records."""
    if is_short:
        return f"`replicator lanes resync {lane} --{ACCEPT_MISSING}` empties it and loads only what the source still has."
    return f"`replicator lanes resync {lane}` loads the lane again."


def find_remedy(reject: Reject, table: str) -> str:
    """The remedy for a record that was rejected for this reason; empty if none is known. `table`: the table of the
    record or of its source, empty if neither is known."""
    if match := WRITE.search(reject.sentence):
        return f"Write {match[1]} in the configuration, and replay the record."
    if WAITS_PATTERN.search(reject.sentence):
        return "Replay the record when the other row exists, or is deleted: `replicator dlq replay`."
    if match := OTHER_NAME.search(reject.sentence):
        return (
            f"Correct the name {match[1]} at the source, send the row again, and delete the record: `replicator dlq purge`. "
            f"Or write {match[1]} under `keys` and `schema`, and replay the record."
        )
    if match := LOOKS_LIKE.search(reject.sentence):
        return f"If the records have that format, set {match[1]} for the source, and replay the record."
    if reject.code == RejectCode.UNKNOWN_OPERATION and reject.sentence.startswith("column "):
        return NAME_OPERATION
    malformed = ONE_PART if table and not reject.sentence.startswith(WHOLE_RECORD) else OTHER_FORMAT
    return malformed if reject.code == RejectCode.MALFORMED else REMEDIES.get(reject.code, "")
