"""Dead letters for people: lists, describes, exports and removes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from replicator.application.operations.archive_files import JsonLinesWriter, open_archive
from replicator.application.operations.retry_dead_letters import to_raw_frame
from replicator.application.table_rules import STOP_LANE
from replicator.domain.archive_bytes import encode_bytes
from replicator.domain.errors import ConfigProblem, Reject
from replicator.domain.patterns import is_exact
from replicator.domain.remedies import GO_ON, find_remedy
from replicator.ports.dead_letters import OPEN, DeadLetter, DeadLetterFilter, DeadLetters
from replicator.settings import Loaded

from . import adapters


@contextmanager
def open_store(loaded: Loaded) -> Iterator[DeadLetters]:
    """The dead-letter store, closed afterwards."""
    opened = adapters.build_dead_letters(loaded)
    try:
        yield opened
    finally:
        opened.close()


def read_dead_letters(loaded: Loaded, which: DeadLetterFilter) -> Sequence[DeadLetter]:
    """The selected dead letters, newest first."""
    with open_store(loaded) as opened:
        return opened.read(which)


def read_newest(loaded: Loaded, which: DeadLetterFilter, limit: int) -> tuple[Sequence[DeadLetter], int]:
    """At most `limit` of the selected dead letters, newest first, and the number of all of them."""
    with open_store(loaded) as opened:
        letters = opened.read(which, limit=limit)
        return letters, len(letters) if len(letters) < limit else len(opened.read(which))


def is_configured(loaded: Loaded, table: str) -> bool:
    """True if an entry of the config covers a table, or if `table` is a glob."""
    settings = loaded.settings
    return not is_exact(table) or any(settings.find_table(table, source) is not None for source in settings.sources)


def read_named(loaded: Loaded, event: str, lane: str | None) -> Sequence[DeadLetter]:
    """The dead letters of one record: one, or one per lane that rejected it. ConfigProblem if there is none."""
    which = DeadLetterFilter(events=frozenset({event}), lane=lane)
    with open_store(loaded) as opened:
        refuse_unknown(opened, which)
        return opened.read(which)


def refuse_unknown(opened: DeadLetters, which: DeadLetterFilter) -> None:
    """Raise ConfigProblem if a named record has no dead letter in any state."""
    if not which.events:
        return
    known = {letter.event_id for letter in opened.read(replace(which, state=None))}
    missing = sorted(which.events - known)
    if missing:
        named = ", ".join(map(repr, missing))
        raise ConfigProblem(f"there is no dead letter {named}", next_step="`replicator dlq list` names those there are.")


def remove_dead_letters(loaded: Loaded, letters: Sequence[DeadLetter]) -> None:
    """Remove the dead letters. Those rejected again since they were read stay."""
    with open_store(loaded) as opened:
        opened.remove(letters)


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


def describe_remedy(loaded: Loaded, letter: DeadLetter) -> str:
    """How to get the record applied, and, if it stops its lanes, how they can continue without it."""
    settings, is_routed = loaded.settings, letter.stage != "route"
    step = find_remedy(Reject(letter.code, letter.sentence), letter.table)
    on_reject = settings.get_on_reject(letter.table, letter.source) if is_routed else settings.on_reject
    if on_reject != STOP_LANE or letter.state != OPEN:
        return step
    behind = f"{letter.topic}:{letter.partition}:{letter.offset + 1}"
    skip = f", or skip it: `replicator lanes skip LANE --until {behind}`" if is_routed and letter.is_placed else ""
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
