"""The port to the store of rejected records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Protocol, runtime_checkable

OPEN = "open"
REPLAYED = "replayed"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One rejected record. `lane` is empty when it was rejected before lanes part (route, decode, but not shape).

    `record` holds the raw value as it came, `key` the raw key; `key_hash` identifies the key without showing it. `stage` is
    one of `route`, `decode`, `shape`, `apply`. `state` is `open`, or `replayed` once it was applied after all. `headers` as
    JSON text, in the form of the archive transport. `source`, `topic`, `partition`, `offset`, `timestamp`, `headers` and
    `key` are empty in letters of before they were kept.
    """

    event_id: str
    lane: str
    stage: str
    code: str
    sentence: str
    table: str
    key_hash: str
    record: bytes | None
    first_seen: datetime
    last_seen: datetime
    attempts: int = 1
    state: str = OPEN
    source: str = ""
    topic: str = ""
    partition: int = -1
    offset: int = -1
    timestamp: datetime | None = None
    headers: str | None = None
    key: bytes | None = None

    @property
    def is_placed(self) -> bool:
        """True when it tells where its record was, so that the record can be made again."""
        return bool(self.topic) and self.offset >= 0

    @property
    def is_open(self) -> bool:
        """True until it is replayed."""
        return self.state == OPEN

    @property
    def retry(self) -> str:
        """The command that tries it again."""
        return f"replicator dlq replay --event '{self.event_id}'" + (f" --lane '{self.lane}'" if self.lane else "")


@dataclass(frozen=True, slots=True, order=True)
class DeadLetterGroup:
    """Letters that are counted together. `table` is empty where it is not known, `lane` as in `DeadLetter`."""

    source: str
    table: str
    lane: str


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Which letters are meant: those that fit everything that is said. Lanes and tables are names or globs; the lane of a
    letter from before lanes part is empty. `before`: not seen again since then."""

    events: frozenset[str] = frozenset()
    lane: str | None = None
    table: str | None = None
    code: str | None = None
    stage: str | None = None
    state: str | None = None
    before: datetime | None = None

    def is_match(self, letter: DeadLetter) -> bool:
        """True for a letter that is meant."""
        pairs = ((self.code, letter.code), (self.stage, letter.stage), (self.state, letter.state))
        globs = ((self.lane, letter.lane), (self.table, letter.table))
        return (
            (not self.events or letter.event_id in self.events)
            and all(wanted in (None, found) for wanted, found in pairs)
            and all(glob is None or fnmatchcase(found, glob) for glob, found in globs)
            and (self.before is None or letter.last_seen < self.before)
        )


ALL_DEAD_LETTERS = DeadLetterFilter()


@runtime_checkable
class KeepsVersions(Protocol):
    """A store of which older versions still hold what was removed from it."""

    def versions(self) -> str:
        """Where, for people; empty where there are none."""

    def end_versions(self) -> str:
        """Remove what they hold; nobody can read them afterwards. What could not be removed, for people."""


class DeadLetters(Protocol):
    """Keeps rejects. A store that cannot write raises, and the program stops: nothing is dropped.

    Every adapter passes `testing.dead_letter_contract.DeadLetterContract`. Safe for use from several threads; several
    processes may write at once.
    """

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """Durable when it returns (test_dead_letters_outlive_the_store). The same (event_id, lane) twice keeps one, open,
        with `last_seen` and `attempts` moved on, and everything else as it was written last
        (test_the_same_dead_letter_is_one)."""

    def read(self, which: DeadLetterFilter = ALL_DEAD_LETTERS, *, limit: int | None = None) -> Sequence[DeadLetter]:
        """Of the letters that are meant the newest by `last_seen`, newest first; equal ones by `event_id`, then by `lane`,
        both compared as bytes. None when nothing was ever written (test_dead_letters_are_filtered)."""

    def count_open(self) -> Mapping[DeadLetterGroup, int]:
        """How many letters are open, by group; empty when nothing was ever written (test_open_dead_letters_are_counted).
        Cheap: reads no record."""

    def mark(self, letters: Sequence[DeadLetter], state: str) -> None:
        """Give letters, as they were read, another state; durable when it returns. One that was written again since stays as
        it is (test_a_repeated_dead_letter_is_not_marked)."""

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        """Forget letters, as they were read. One that was written again since stays (test_dead_letters_are_removed)."""

    def close(self) -> None:
        """Release everything; may be called twice."""
