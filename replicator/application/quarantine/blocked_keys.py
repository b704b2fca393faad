"""Blocked keys: a rejected record blocks later records of its key, if so configured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic

from replicator.domain.erasures import UNKEYED_HASHES
from replicator.domain.errors import DataLoss, Reject, RejectCode
from replicator.ports.engine import Frames
from replicator.ports.frames import F, RejectedRecord
from replicator.ports.stores import DeadLetter

from .rejects import Rejects

BlockedKey = tuple[str, int, str]
"""Topic, partition, and the hash of the key. Records without a key block nothing."""

BLOCKED_REASON = str(
    Reject(
        RejectCode.HELD,
        "an earlier record of its key was rejected; `replicator dlq replay` applies both, in order",
    )
)


class BlockedKeys(Generic[F]):
    """The blocked keys of one source. Reads the dead-letter store once, so that a restart unblocks nothing. For
    one thread.

    A key is blocked above its first open dead letter. Only in the partition of that record, since records of
    different partitions have no order.
    """

    def __init__(self, source: str, frames: Frames[F], rejects: Rejects[F]) -> None:
        self._source = source
        self._frames = frames
        self._rejects = rejects
        self._since: dict[BlockedKey, int] | None = None
        self._hashes = UNKEYED_HASHES

    def split_blocked(self, raw: F) -> tuple[F, F | None]:
        """The records that are not blocked, and the blocked ones, with `_error`; None without any."""
        since = self._load_keys()
        if not since:
            return raw, None
        self._refuse_others(since)
        free, held = self._frames.split_blocked(raw, since, BLOCKED_REASON, self._hashes)
        return free, held if self._frames.count(held) else None

    def add_rejects(self, rows: F, raw: F) -> bool:
        """Block the keys of these rejects. True if records of `raw` may be blocked by that."""
        since, new = self._load_keys(), False
        for rejected in self._frames.rejected(rows, [raw]):
            new |= _add_key(since, rejected, self._hashes.hash_key(rejected.key))
        return new

    def _load_keys(self) -> dict[BlockedKey, int]:
        if self._since is None:
            self._since, self._hashes = {}, self._rejects.get_hashes(self._source)
            for dead_letter in self._rejects.list_open(self._source):
                _add_key(self._since, dead_letter, dead_letter.key_hash if dead_letter.is_placed else "")
        return self._since

    def _refuse_others(self, since: Iterable[BlockedKey]) -> None:
        """Raise DataLoss if stored key hashes cannot be compared, so that the blocked keys are unknown."""
        if not all(self._hashes.is_comparable(key_hash) for _, _, key_hash in since):
            raise DataLoss(
                f"Source {self._source} has blocked keys that were hashed with another secret than `keys.secret` (in the "
                "folder of the erasure list). So it is unknown which later records must wait for them.",
                next_step="Restore that file from a copy. If masks are new, replay or purge the records (`replicator dlq`).",
            )


def _add_key(since: dict[BlockedKey, int], one: RejectedRecord | DeadLetter, key_hash: str) -> bool:
    if not key_hash:
        return False
    at, after = (one.topic, one.partition, key_hash), one.offset + 1
    known = since.get(at)
    since[at] = after if known is None else min(known, after)
    return since[at] != known


def find_blocked(dead_letters: Iterable[DeadLetter], tried_ids: set[str]) -> dict[str, bool]:
    """The blocked dead letters (code HELD), by event id. True: an earlier record of the key is not retried with them.

    `dead_letters`: in the order of their records. `tried_ids`: the event ids to retry.
    """
    waiting: set[BlockedKey] = set()
    found: dict[str, bool] = {}
    for dead_letter in dead_letters:
        has_key = dead_letter.key_hash and dead_letter.is_placed
        at = (dead_letter.topic, dead_letter.partition, dead_letter.key_hash) if has_key else None
        if dead_letter.code == RejectCode.HELD and at is not None:
            found[dead_letter.event_id] = at in waiting
        if at is not None and (dead_letter.event_id not in tried_ids or found.get(dead_letter.event_id)):
            waiting.add(at)
    return found
