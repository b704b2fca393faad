"""Dead letters for people: lists, describes and exports them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from replicator.domain.archive_bytes import encode_bytes
from replicator.domain.errors import Reject
from replicator.domain.remedies import GO_ON, find_remedy
from replicator.ports.components import STOP_LANE
from replicator.ports.dead_letters import OPEN, DeadLetter, DeadLetterFilter, DeadLetters

from .archive_files import JsonLinesWriter, open_archive
from .retry_dead_letters import refuse_unknown, refuse_unknown_code, to_raw_frame


def read_selected(store: DeadLetters, which: DeadLetterFilter) -> Sequence[DeadLetter]:
    """The selected dead letters, newest first. ConfigProblem for an unknown code."""
    refuse_unknown_code(store, which)
    return store.read(which)


def read_newest(store: DeadLetters, which: DeadLetterFilter, limit: int) -> tuple[Sequence[DeadLetter], int]:
    """At most `limit` of the selected dead letters, newest first, and the number of all of them. ConfigProblem for an
    unknown code."""
    refuse_unknown_code(store, which)
    letters = store.read(which, limit=limit)
    return letters, len(letters) if len(letters) < limit else len(store.read(which))


def read_named(store: DeadLetters, event: str, lane: str | None) -> Sequence[DeadLetter]:
    """The dead letters of one record: one, or one per lane that rejected it. ConfigProblem if there is none."""
    which = DeadLetterFilter(events=frozenset({event}), lane=lane)
    refuse_unknown(store, which)
    return store.read(which)


def to_json(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as JSON: UTF-8 bytes as text, other bytes as in archives."""
    fields = {name: getattr(letter, name) for name in letter.__dataclass_fields__}
    record, key = letter.record, letter.key
    plain = None if record is None else record.decode("utf-8", "replace")
    headers = None if letter.headers is None else json.loads(letter.headers)
    placed = {"partition": letter.partition, "offset": letter.offset} if letter.is_placed else {}
    unknown = {"partition": None, "offset": None}
    more = {"record": plain, "key": encode_bytes(key), "headers": headers, **unknown, **placed}
    return {**fields, **more, "retry": letter.retry}


def describe_remedy(letter: DeadLetter, on_reject: str) -> str:
    """How to get the record applied, and, if it stops its lanes (`on_reject`), how they can continue without it."""
    step = find_remedy(Reject(letter.code, letter.sentence), letter.table)
    if on_reject != STOP_LANE or letter.state != OPEN:
        return step
    behind = f"{letter.topic}:{letter.partition}:{letter.offset + 1}"
    skip = (
        f", or skip it: `replicator lanes skip LANE --until {behind}`"
        if letter.stage != "route" and letter.is_placed
        else ""
    )
    return f"{step} {GO_ON}{skip}.".lstrip()


def describe_position(letter: DeadLetter) -> str:
    """The position of the record: a file and line, or topic, partition and offset."""
    scheme, found, path = letter.topic.partition("archive:")
    if found and not scheme:
        return f"{path} line {letter.offset}"
    return f"{letter.topic} partition {letter.partition} offset {letter.offset}" if letter.is_placed else letter.event_id


def export_records(letters: Iterable[DeadLetter], to: Path | BinaryIO) -> int:
    """Write the records of the dead letters as an archive, each once, ordered by partition and offset. Returns
    their number.

    A path selects the format by its suffix; a stream gets JSON Lines. Dead letters without a position are left out.
    """
    placed = {(each.topic, each.partition, each.offset): each for each in letters if each.is_placed}
    records = to_raw_frame(placed[at] for at in sorted(placed))
    if isinstance(to, Path):
        with open_archive(to) as writer:
            writer.write(records)
    else:
        JsonLinesWriter(to).write(records)
    return int(records.num_rows)
