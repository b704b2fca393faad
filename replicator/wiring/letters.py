"""Dead letters for people: read, told, written as an archive, forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from replicator.application.archive_files import JsonLines, archive_writer
from replicator.application.replay import records_of
from replicator.application.rules import STOP_LANE
from replicator.domain.archived import written
from replicator.domain.errors import ConfigProblem, Reject
from replicator.domain.patterns import is_exact
from replicator.domain.remedies import GO_ON, remedy_of
from replicator.ports.dead_letters import OPEN, DeadLetter, DeadLetters, Which
from replicator.settings import Loaded

from . import adapters


@contextmanager
def store(loaded: Loaded) -> Iterator[DeadLetters]:
    """The store of dead letters, closed afterwards."""
    opened = adapters.dead_letters(loaded)
    try:
        yield opened
    finally:
        opened.close()


def found(loaded: Loaded, which: Which) -> Sequence[DeadLetter]:
    """The letters that are meant, newest first."""
    with store(loaded) as opened:
        return opened.read(which)


def newest(loaded: Loaded, which: Which, limit: int) -> tuple[Sequence[DeadLetter], int]:
    """So many of the letters that are meant, newest first, and how many there are."""
    with store(loaded) as opened:
        letters = opened.read(which, limit=limit)
        return letters, len(letters) if len(letters) < limit else len(opened.read(which))


def is_configured(loaded: Loaded, table: str) -> bool:
    """Whether an entry of the config is about a table, or about some of a glob."""
    settings = loaded.settings
    return not is_exact(table) or any(settings.table_for(table, source) is not None for source in settings.sources)


def named(loaded: Loaded, event: str, lane: str | None) -> Sequence[DeadLetter]:
    """The letters of one record: one, or one per lane that rejected it. ConfigProblem when there is none."""
    which = Which(events=frozenset({event}), lane=lane)
    with store(loaded) as opened:
        refuse_unknown(opened, which)
        return opened.read(which)


def refuse_unknown(opened: DeadLetters, which: Which) -> None:
    """Raise ConfigProblem when a record that is named has no letter, in whatever state."""
    if not which.events:
        return
    known = {letter.event_id for letter in opened.read(replace(which, state=None))}
    missing = sorted(which.events - known)
    if missing:
        named = ", ".join(map(repr, missing))
        raise ConfigProblem(f"there is no dead letter {named}", next_step="`replicator dlq list` names those there are.")


def purge(loaded: Loaded, letters: Sequence[DeadLetter]) -> None:
    """Forget the letters; what was rejected again since they were read stays."""
    with store(loaded) as opened:
        opened.remove(letters)


def told(letter: DeadLetter) -> dict[str, Any]:
    """A letter as JSON has it: bytes as text where they are UTF-8, in the form of archives where not."""
    fields = {name: getattr(letter, name) for name in letter.__dataclass_fields__}
    record, key = letter.record, letter.key
    plain = None if record is None else record.decode("utf-8", "replace")
    headers = None if letter.headers is None else json.loads(letter.headers)
    placed = {"partition": letter.partition, "offset": letter.offset} if letter.is_placed else {}
    unknown = {"partition": None, "offset": None}
    more = {"record": plain, "key": written(key), "headers": headers, **unknown, **placed}
    return {**fields, **more, "retry": letter.retry}


def what_to_do(loaded: Loaded, letter: DeadLetter) -> str:
    """What lets the record in; and what lets its lanes go on without it, where they stop at it."""
    settings, is_routed = loaded.settings, letter.stage != "route"
    step = remedy_of(Reject(letter.code, letter.sentence), letter.table)
    on_reject = settings.on_reject_of(letter.table, letter.source) if is_routed else settings.on_reject
    if on_reject != STOP_LANE or letter.state != OPEN:
        return step
    behind = f"{letter.topic}:{letter.partition}:{letter.offset + 1}"
    skip = f", or skip it: `replicator lanes skip LANE --until {behind}`" if is_routed and letter.is_placed else ""
    return f"{step} {GO_ON}{skip}.".lstrip()


def place(letter: DeadLetter) -> str:
    """Where the record was: a file and line, or topic, partition and offset."""
    scheme, found, path = letter.topic.partition("archive:")
    if found and not scheme:
        return f"{path} line {letter.offset}"
    return f"{letter.topic} partition {letter.partition} offset {letter.offset}" if letter.is_placed else letter.event_id


def export(letters: Iterable[DeadLetter], to: Path | BinaryIO) -> int:
    """Write the records of the letters as an archive, each once, by partition in the order of their offsets: a file as its
    name says, or JSON Lines. The number of records; letters that do not tell their record's place have none."""
    placed = {(each.topic, each.partition, each.offset): each for each in letters if each.is_placed}
    records = records_of(placed[at] for at in sorted(placed))
    if isinstance(to, Path):
        with archive_writer(to) as writer:
            writer.write(records)
    else:
        JsonLines(to).write(records)
    return int(records.num_rows)
