"""Next steps for rejected records, by code and sentence, and for lost records."""

from __future__ import annotations

import re

from .errors import Reject, RejectCode

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


def describe_reload(lane: str, *, is_short: bool = False) -> str:
    """The command that empties a lane and loads it again. `is_short`: its source no longer has all records."""
    if is_short:
        return f"`replicator lanes resync {lane} --{ACCEPT_MISSING}` empties it and loads only what the source still has."
    return f"`replicator lanes resync {lane}` loads the lane again."


def find_remedy(reject: Reject, table: str) -> str:
    """The remedy for a record that was rejected for this reason; empty if none is known. `table`: the table of the
    record or of its source, empty if neither is known."""
    if found := WRITE.search(reject.sentence):
        return f"Write {found[1]} in the configuration, and replay the record."
    if WAITS_PATTERN.search(reject.sentence):
        return "Replay the record when the other row exists, or is deleted: `replicator dlq replay`."
    if found := OTHER_NAME.search(reject.sentence):
        return (
            f"Correct the name {found[1]} at the source, send the row again, and delete the record: `replicator dlq purge`. "
            f"Or write {found[1]} under `keys` and `schema`, and replay the record."
        )
    if found := LOOKS_LIKE.search(reject.sentence):
        return f"If the records have that format, set {found[1]} for the source, and replay the record."
    if reject.code == RejectCode.UNKNOWN_OPERATION and reject.sentence.startswith("column "):
        return NAME_OPERATION
    malformed = ONE_PART if table and not reject.sentence.startswith(WHOLE_RECORD) else OTHER_FORMAT
    return malformed if reject.code == RejectCode.MALFORMED else REMEDIES.get(reject.code, "")
