"""The port to the store of rejected records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One rejected record. `lane` is empty when it was rejected before lanes part (route, decode, but not shape).

    `record` holds the raw value as it came; `key_hash` identifies the key without showing it. `stage` is one of `route`,
    `decode`, `shape`, `apply`.
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
    state: str = "open"


class DeadLetters(Protocol):
    """Keeps rejects. A store that cannot write raises, and the program stops: nothing is dropped."""

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """Durable when it returns. The same (event_id, lane) twice keeps one, with `last_seen` and `attempts` moved on."""

    def read(self, *, limit: int | None = None) -> Sequence[DeadLetter]:
        """The letters there are, newest first."""

    def close(self) -> None:
        """Release everything; may be called twice."""
