"""Dead letters in a Kafka topic: a message for each of their changes, in order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from replicator.ports.stores import (
    ALL_DEAD_LETTERS,
    OPEN,
    DeadLetter,
    DeadLetterFeatures,
    DeadLetterFilter,
    DeadLetterGroup,
)

from ...stores import DeadLetterSettings
from .topic import (
    MARKED,
    REJECTED,
    REMOVED,
    DeadLetterEvent,
    DeadLetterMessage,
    DeadLetterTopic,
    TopicTruncated,
    change_to_message,
    message_to_event,
    record_to_message,
)

READINGS = 5


class KafkaDeadLetters:
    """`ports.stores.DeadLetters`; options: see `DeadLetterSettings`, with `topic`.

    The first write creates the topic if it is missing.

    A dead letter that is written twice has two messages, and is returned once.
    """

    def __init__(self, options: DeadLetterSettings | Mapping[str, Any]) -> None:
        self._options = DeadLetterSettings.read(options)
        self._topic = DeadLetterTopic(self._options)
        self._turn = threading.RLock()
        self._made = False

    @property
    def features(self) -> DeadLetterFeatures:
        return DeadLetterFeatures()

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """The messages are on every replica in sync when it returns."""
        self._write_messages([record_to_message(letter, self._options.pipeline) for letter in letters])

    def read(self, which: DeadLetterFilter = ALL_DEAD_LETTERS, *, limit: int | None = None) -> Sequence[DeadLetter]:
        """Reads the topic from its beginning."""
        # Clients of its own: a reject that has to be written does not wait until the whole topic is read.
        with closing(DeadLetterTopic(self._options)) as topic:
            if not topic.exists():
                return []
            journal, _ = self._read_log(topic)
        return list(islice(filter(which.is_match, journal.list_dead_letters()), limit))

    def count_open(self) -> Mapping[DeadLetterGroup, int]:
        """Reads the topic from its beginning, as `read` does."""
        return Counter(
            DeadLetterGroup(each.source, each.table, each.lane) for each in self.read(DeadLetterFilter(state=OPEN))
        )

    def mark(self, letters: Sequence[DeadLetter], state: str) -> None:
        self._write_messages(
            [change_to_message(replace(letter, state=state), MARKED, self._options.pipeline) for letter in letters]
        )

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        """Deletes messages at the beginning of the topic that are not needed any more. Messages behind a needed one stay
        until that one is not needed either."""
        with self._turn:
            self._write_messages([change_to_message(letter, REMOVED, self._options.pipeline) for letter in letters])
            if letters:
                journal, (begin, end) = self._read_log(self._topic)
                needed = journal.find_oldest_needed(end)
                if needed > begin:
                    self._topic.truncate_before(needed)

    def close(self) -> None:
        with self._turn:
            self._topic.close()

    def _write_messages(self, messages: Sequence[DeadLetterMessage]) -> None:
        if not messages:
            return
        with self._turn:
            if not self._made:
                self._topic.create()
                self._made = True
            self._topic.write_messages(messages)

    def _read_log(self, topic: DeadLetterTopic) -> tuple[DeadLetterLog, tuple[int, int]]:
        """The content of the topic, and the offsets between which it was read."""
        for _ in range(READINGS - 1):
            try:
                return self._read_log_once(topic)
            except TopicTruncated:
                continue
        return self._read_log_once(topic)

    def _read_log_once(self, topic: DeadLetterTopic) -> tuple[DeadLetterLog, tuple[int, int]]:
        journal = DeadLetterLog(self._options.pipeline)
        return journal, topic.read_messages(journal.apply_message)


# The dead letters that the messages of a topic say, in their order.

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
