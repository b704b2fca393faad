"""Next steps for rejected records, by code and sentence, and for lost records."""

from __future__ import annotations

import re

from .errors import Reject, RejectCode

FIX_SOURCE = (
    "Correct the row at the source: its next change brings the targets up to date. Or delete the record: "
    "`replicator dlq purge`."
)
OTHER_FORMAT = "See whether the source's `format` is what the records are, and correct it."
ONE_PART = (
    "Only the part that the reason names cannot be read; `format` is right. If that part is a column, and the records carry "
    "no schema of their own, declare the columns under `schema` of its table, and replay the record. Otherwise: "
    + FIX_SOURCE
)
WHOLE_RECORD = ("the record is not ", "it is JSON, but no object")
NAME_OPERATION = "Name the operation under `operations` of the source."
LOOKS_LIKE = re.compile(r"it looks like (`format: \w+`)")
WAITS_PATTERN = re.compile(r"\bit waits (for its row of|until)\b")
OTHER_NAME = re.compile(r"is missing, and the record has (.+) instead")
WRITE = re.compile(r"\bwrite (`[^`]+`)")
REMEDIES = {
    RejectCode.UNKNOWN_OPERATION: "The format has no such operation. " + FIX_SOURCE,
    RejectCode.NULL_KEY: "Name the key columns with `keys`, and replay the record; if the lane is then suspended, since its "
    "rows have another key, load it again with `replicator lanes resync LANE`. Or: " + FIX_SOURCE,
    RejectCode.NO_SEQUENCE: "Nothing tells whether the record is newer than others of its table, which say it. "
    + FIX_SOURCE,
    RejectCode.SEQUENCE: "Name other columns in `sequence_by` (deletes need REPLICA IDENTITY FULL for it), and load the "
    "lane again with `replicator lanes resync LANE`. Or: " + FIX_SOURCE,
    RejectCode.OUT_OF_RANGE: "Give the column a wider type, in `schema` or in the target, or declare it as `string`, and "
    "replay the record. " + FIX_SOURCE,
    RejectCode.INCOMPLETE: "Replay the record that made the row first, if it was rejected too; or load the table again.",
    RejectCode.LATE: "Load the lane again with `replicator lanes resync LANE`. A longer `watermark` or "
    "`tombstone_retention` lets such changes in from then on.",
    RejectCode.TOO_LARGE: "Raise what it exceeds under `limits` (`message_bytes`, `columns`, `depth`), and replay it.",
    RejectCode.CRASHED: "Report it, with the record, and replay it once a release decodes it.",
    RejectCode.NO_EVENT: "Have the service write what a stored event needs (docs/how-to/store-outbox-events.md), and "
    "this one again under a new id; or raise the bound under `limits` that it names, and replay it.",
    RejectCode.AMBIGUOUS: "PostgreSQL: write `replica_identity: full` or `replica_identity: default` for the source, as the "
    "table has it (`\\d+ TABLE` in psql; docs/explanation/key-changes.md), and replay the record. GoldenGate and DTS: look "
    "for the key in the source. If a row has it there, the target is right: `replicator dlq purge`. If none has it, delete "
    "the row of the target by hand, and replay the record.",
    RejectCode.UNKNOWN_SCHEMA: "Correct `url` of the source's `registry` if the connector registers its schemas elsewhere. "
    "Or import the schema into the registry, with this id. Then replay the record.",
    RejectCode.HELD: "Replay the earlier rejected record of its key: `replicator dlq replay` replays both in their order.",
}


GO_ON = (
    "Its lanes stop before it (`on_reject: stop_lane`), and read it again when the program starts again. To go on without "
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
        skip += ", if it names one" if table == "TABLE" else ""
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
        return "Replay it once the other row is there, or gone: `replicator dlq replay`."
    if found := OTHER_NAME.search(reject.sentence):
        return (
            f"Correct the name {found[1]} at the source, send the row again, and delete the record: `replicator dlq purge`. "
            f"Or write {found[1]} under `keys` and `schema`, and replay the record."
        )
    if found := LOOKS_LIKE.search(reject.sentence):
        return f"Write {found[1]} for the source, if its records are of that format, and replay the record."
    if reject.code == RejectCode.UNKNOWN_OPERATION and reject.sentence.startswith("column "):
        return NAME_OPERATION
    malformed = ONE_PART if table and not reject.sentence.startswith(WHOLE_RECORD) else OTHER_FORMAT
    return malformed if reject.code == RejectCode.MALFORMED else REMEDIES.get(reject.code, "")
