"""Dead letters for people: lists, describes and exports them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from replicator.application.quarantine.rejects import headers_from_text
from replicator.domain.change import RAW
from replicator.domain.errors import (
    GO_ON,
    ConfigProblem,
    Reject,
    RejectCode,
    find_remedy,
)
from replicator.domain.event_log import encode_bytes
from replicator.ports.components import STOP_LANE
from replicator.ports.stores import OPEN, DeadLetter, DeadLetterFilter, DeadLetters

from .archive_files import JsonLinesWriter, open_archive


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


def refuse_unknown(store: DeadLetters, which: DeadLetterFilter) -> None:
    """Raise ConfigProblem if a named record has no dead letter in any state."""
    if not which.events:
        return
    stored = {letter.event_id for letter in store.read(replace(which, state=None))}
    missing = sorted(which.events - stored)
    if missing:
        ids = ", ".join(map(repr, missing))
        raise ConfigProblem(f"there is no dead letter {ids}", next_step="`replicator dlq list` shows the known ids.")


def refuse_unknown_code(store: DeadLetters, which: DeadLetterFilter) -> None:
    """Raise ConfigProblem for a code that neither the program knows nor a dead letter has."""
    codes = RejectCode.list_all()
    if which.code not in (None, *codes) and not store.read(DeadLetterFilter(code=which.code), limit=1):
        raise ConfigProblem(f"there is no code {which.code}", next_step=f"Use one of {', '.join(codes)}.")


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
    scheme, separator, path = letter.topic.partition("archive:")
    if separator and not scheme:
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


def to_raw_frame(letters: Iterable[DeadLetter]) -> pa.Table:
    """The original records of the dead letters, as a raw frame."""
    rows = []
    for letter in letters:
        headers = headers_from_text(letter.headers)
        row = {
            "topic": letter.topic,
            "partition": letter.partition,
            "offset": letter.offset,
            "timestamp": letter.timestamp,
            "headers": None if headers is None else [{"name": name, "value": value} for name, value in headers],
            "key": letter.key,
            "value": letter.record,
        }
        rows.append(row)
    return pa.Table.from_pylist(rows, RAW)
