"""Dead letters in a Kafka topic, as everything that was said of them, in its order."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice

from replicator.ports.dead_letters import EVERY, OPEN, DeadLetter, LetterGroup, Which

from .journal import Journal
from .messages import MARKED, REMOVED, Message, said_of, written
from .options import TopicOptions
from .topic import CutMeanwhile, LettersTopic

READINGS = 5


class KafkaDeadLetters:
    """`ports.dead_letters.DeadLetters`; options of `TopicOptions`. Makes its topic when it first writes, unless it is there.

    A letter that is written twice is two messages, and one letter for whoever reads here.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = TopicOptions.read(options)
        self._topic = LettersTopic(self._options)
        self._turn = threading.RLock()
        self._made = False

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """See `ports.dead_letters.DeadLetters.write`. On every replica in sync when it returns."""
        self._write([written(letter, self._options.pipeline) for letter in letters])

    def read(self, which: Which = EVERY, *, limit: int | None = None) -> Sequence[DeadLetter]:
        """See `ports.dead_letters.DeadLetters.read`. Reads the topic from its beginning."""
        # Clients of its own: a reject that has to be written does not wait until the whole topic is read.
        with closing(LettersTopic(self._options)) as topic:
            if not topic.exists():
                return []
            journal, _ = self._journal(topic)
        return list(islice(filter(which.takes, journal.letters()), limit))

    def count_open(self) -> Mapping[LetterGroup, int]:
        """See `ports.dead_letters.DeadLetters.count_open`. Reads the topic from its beginning, as `read` does."""
        return Counter(LetterGroup(each.source, each.table, each.lane) for each in self.read(Which(state=OPEN)))

    def mark(self, letters: Sequence[DeadLetter], state: str) -> None:
        """See `ports.dead_letters.DeadLetters.mark`."""
        self._write([said_of(replace(letter, state=state), MARKED, self._options.pipeline) for letter in letters])

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        """See `ports.dead_letters.DeadLetters.remove`. Messages at the topic's beginning that nothing needs any more are
        deleted from it; those behind one that is needed lie there until that one is gone too."""
        with self._turn:
            self._write([said_of(letter, REMOVED, self._options.pipeline) for letter in letters])
            if letters:
                journal, (begin, end) = self._journal(self._topic)
                needed = journal.needed_from(end)
                if needed > begin:
                    self._topic.cut(needed)

    def close(self) -> None:
        """See `ports.dead_letters.DeadLetters.close`."""
        with self._turn:
            self._topic.close()

    def _write(self, messages: Sequence[Message]) -> None:
        if not messages:
            return
        with self._turn:
            if not self._made:
                self._topic.make()
                self._made = True
            self._topic.write(messages)

    def _journal(self, topic: LettersTopic) -> tuple[Journal, tuple[int, int]]:
        """What the topic says, and the offsets between which it was read."""
        for _ in range(READINGS - 1):
            try:
                return self._once_through(topic)
            except CutMeanwhile:
                continue
        return self._once_through(topic)

    def _once_through(self, topic: LettersTopic) -> tuple[Journal, tuple[int, int]]:
        journal = Journal(self._options.pipeline)
        return journal, topic.read(journal.take)
