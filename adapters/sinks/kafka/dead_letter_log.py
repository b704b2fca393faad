"""What the messages of a topic, read in their order, leave of dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from replicator.ports.dead_letters import DeadLetter

from .messages import MARKED, REJECTED, DeadLetterEvent, DeadLetterMessage, message_to_event

Name = tuple[str, str, str]
"""Pipeline, event and lane."""


@dataclass(slots=True)
class OpenDeadLetter:
    """A letter that is there, and the offset of the message it began with."""

    letter: DeadLetter
    since: int


class DeadLetterLog:
    """Takes every message of the topic, from its beginning. What it knows after some of them is what holds, whoever wrote
    them: that a letter is marked or gone counts only where nothing was written of it since it was read."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._lives: dict[Name, OpenDeadLetter] = {}
        self._foreign: int | None = None

    def apply_message(self, offset: int, message: DeadLetterMessage) -> None:
        """The next message."""
        said = message_to_event(message)
        if said is None:
            self._foreign = offset if self._foreign is None else self._foreign
            return
        name = (said.pipeline, said.letter.event_id, said.letter.lane)
        known = self._lives.get(name)
        if said.kind == REJECTED:
            self._lives[name] = self._apply_write(known, offset, said)
        elif known is not None and known.letter.attempts == said.letter.attempts:
            if said.kind == MARKED:
                known.letter = replace(known.letter, state=said.letter.state)
            else:
                del self._lives[name]

    def _apply_write(self, known: OpenDeadLetter | None, offset: int, said: DeadLetterEvent) -> OpenDeadLetter:
        letter = said.letter
        if said.pipeline != self._pipeline:
            # Only when it began is of use here.
            letter = replace(letter, record=None, key=None)
        if known is None:
            return OpenDeadLetter(letter, offset)
        before = known.letter
        last, attempts = max(before.last_seen, letter.last_seen), before.attempts + letter.attempts
        return OpenDeadLetter(replace(letter, first_seen=before.first_seen, last_seen=last, attempts=attempts), known.since)

    def list_dead_letters(self) -> Sequence[DeadLetter]:
        """Those of the pipeline, newest first."""
        mine = [life.letter for (pipeline, _, _), life in self._lives.items() if pipeline == self._pipeline]
        mine.sort(key=lambda letter: (letter.event_id, letter.lane))
        return sorted(mine, key=lambda letter: letter.last_seen, reverse=True)

    def find_oldest_needed(self, end: int) -> int:
        """The lowest offset of a message that says something of a letter that is there, of whatever pipeline, or that is
        somebody else's; `end` when there is none."""
        foreign = end if self._foreign is None else self._foreign
        return min([end, foreign, *(life.since for life in self._lives.values())])
