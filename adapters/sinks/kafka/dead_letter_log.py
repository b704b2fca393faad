"""The dead letters of a topic, from its messages in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from replicator.ports.dead_letters import DeadLetter

from .messages import MARKED, REJECTED, DeadLetterEvent, DeadLetterMessage, message_to_event

Name = tuple[str, str, str]
"""Pipeline, event and lane."""


@dataclass(slots=True)
class OpenDeadLetter:
    """An existing dead letter, and the offset of its first message."""

    letter: DeadLetter
    since: int


class DeadLetterLog:
    """Reads every message of the topic, from its beginning, and then has the current dead letters. The messages may come
    from several writers. A mark or a removal only counts if the dead letter was not written again since it was read."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._lives: dict[Name, OpenDeadLetter] = {}
        self._foreign: int | None = None

    def apply_message(self, offset: int, message: DeadLetterMessage) -> None:
        """Apply the next message."""
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
        """The dead letters of the pipeline, newest first."""
        mine = [life.letter for (pipeline, _, _), life in self._lives.items() if pipeline == self._pipeline]
        mine.sort(key=lambda letter: (letter.event_id, letter.lane))
        return sorted(mine, key=lambda letter: letter.last_seen, reverse=True)

    def find_oldest_needed(self, end: int) -> int:
        """The lowest offset of a message about an existing dead letter of any pipeline, or of a message of another
        program. `end` if there is no such message."""
        foreign = end if self._foreign is None else self._foreign
        return min([end, foreign, *(life.since for life in self._lives.values())])
