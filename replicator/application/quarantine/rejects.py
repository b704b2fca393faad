"""Rejects: writes rejected records into the dead-letter store, and counts them."""

from __future__ import annotations

import json
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic

import pyarrow as pa
import structlog

from replicator.application.lane_runs import Clock, monotonic
from replicator.application.options import Backoff, RuntimeOptions
from replicator.application.problem import Stopped, to_problem
from replicator.domain.change import RAW
from replicator.domain.erasures import UNKEYED_HASHES, KeyHashes
from replicator.domain.errors import (
    DataLoss,
    EnvironmentProblem,
    Fatal,
    Reject,
    RejectCode,
    ReplicatorError,
    Retryable,
    TooManyRejects,
    find_remedy,
)
from replicator.domain.event_log import decode_bytes, encode_bytes
from replicator.domain.plain_values import format_count
from replicator.domain.position import TopicPartition
from replicator.local_files import create_file, make_folder
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Frames
from replicator.ports.frames import F, RejectedRecord, Stop
from replicator.ports.runtime import OpenDeadLetters, RecordsRejected, Telemetry
from replicator.ports.stores import OPEN, DeadLetter, DeadLetterFilter, DeadLetterGroup, DeadLetters

# Counts of open dead letters, for people. A separate thread reads them from the store now and then.

log = structlog.get_logger(__name__)

AFTER_REJECTS = 5.0
"""Seconds between two counts while records are rejected."""
OTHERWISE = 60.0
"""Seconds between two counts otherwise: other programs retry and remove dead letters."""
SHARE = 20
"""A slow count is repeated only after this many times its duration."""


class DeadLetterCounts:
    """`counts`: the last counts; None before the first, and while the store cannot be read. Thread-safe."""

    def __init__(self, store: DeadLetters, telemetry: Telemetry, clock: Clock = monotonic) -> None:
        self._store = store
        self._telemetry = telemetry
        self._clock = clock
        self._lock = threading.Lock()
        self._is_stale = True
        self._ended_at: float | None = None
        self._took = 0.0
        self._is_failing = False
        self.counts: Mapping[DeadLetterGroup, int] | None = None

    def invalidate(self) -> None:
        """Note that dead letters were written."""
        self._is_stale = True

    def refresh(self) -> None:
        """Count again if it is due. Uses a thread of its own, since the store may be slow or not answer."""
        pause = max(AFTER_REJECTS if self._is_stale else OTHERWISE, SHARE * self._took)
        if (self._ended_at is None or self._clock() - self._ended_at >= pause) and not self._lock.locked():
            threading.Thread(target=self.recount, name="dead letters", daemon=True).start()

    def recount(self) -> None:
        """Count now."""
        with self._lock:
            began, self._is_stale = self._clock(), False
            try:
                self.counts = dict(self._store.count_open())
                self._is_failing = False
            except Exception as error:
                # Warn once for several failures in a row: the count is repeated every few seconds.
                write_log = log.debug if self._is_failing else log.warning
                write_log("dead letters cannot be counted", sentence=to_problem(error).sentence)
                self.counts, self._is_stale, self._is_failing = None, True, True
            self._telemetry.record(OpenDeadLetters(self.counts or {}))
            self._ended_at = self._clock()
            self._took = self._ended_at - began


def count_for_lane(counts: Mapping[DeadLetterGroup, int], source: str, table: str, lane: str) -> int:
    """The dead letters that keep records from a lane: its own, and its table's from before fan-out.

    `table` is empty for an event log, which has every record.
    """
    shared = counts.get(DeadLetterGroup(source, table, ""), 0) if table else 0
    return shared + sum(count for group, count in counts.items() if group.lane == lane)


# The file with the secret for hashes of private keys, in the state folder.

BYTES = 32


class KeyFile:
    """The file, created on first use. Several processes may use it at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: KeyHashes | None = None

    def load_hashes(self) -> KeyHashes:
        """The hash function with the secret. EnvironmentProblem if the file can be neither read nor created."""
        if self._known is None:
            try:
                self._known = KeyHashes(self._load_secret())
            except (OSError, ValueError) as error:
                why = (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
                raise EnvironmentProblem(
                    f"{self._path}, the secret for hashes of blocked keys, cannot be read: {why}",
                    next_step="Restore it from a copy. Or remove it, and replay or purge the held records (`replicator "
                    "dlq`).",
                ) from error
        return self._known

    def _load_secret(self) -> bytes:
        if not self._path.exists():
            try:
                make_folder(self._path.parent)
                create_file(self._path, secrets.token_bytes(BYTES).hex().encode(), 0o600)
            except OSError as error:
                raise EnvironmentProblem(
                    f"{self._path.parent} cannot be written ({error.strerror})",
                    next_step="Make the folder named by `state` writable.",
                ) from error
        secret = bytes.fromhex(self._path.read_text("ascii"))
        if len(secret) != BYTES:
            raise ValueError(f"it has {format_count(len(secret), 'byte')} instead of {BYTES}")
        return secret


MAX_KINDS = 1_000
"""Kinds of rejects that are counted separately. Table names are read from records, so their number is not limited."""
OTHER = "(other)"
READING = "reading what was rejected"
WRITING = "writing rejected records"


@dataclass(frozen=True, slots=True, order=True)
class RejectKind:
    """A kind of rejects that are counted together. `table` is empty if unknown."""

    source: str
    table: str
    stage: str
    code: str


@dataclass(frozen=True, slots=True)
class StoredReject:
    """A rejected record that is durable: its position, and its kind."""

    partition: TopicPartition
    offset: int
    kind: RejectKind


class DeadLetterStoreDown(Fatal):
    """The dead-letter store does not answer. The program stops, so that no reject is lost."""


@dataclass(frozen=True, slots=True)
class StoreCall:
    """A call of the store in progress. `error`: the last error, if the call is repeated."""

    doing: str
    since: datetime
    error: str | None = None


class Rejects(Generic[F]):
    """Writes rejects, durably, before any position moves past them. Thread-safe.

    - `secret`: the hash function for private keys. Without it, a random one is used for one run.
    - `broken`: the error after which nothing may go on, even if a sink wraps it in another one.
    """

    def __init__(
        self,
        store: DeadLetters,
        frames: Frames[F],
        stop: Stop,
        options: RuntimeOptions,
        telemetry: Telemetry,
        *,
        secret: Callable[[], KeyHashes] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Clock = monotonic,
    ) -> None:
        self._store = store
        self._secret = secret or partial(KeyHashes, secrets.token_bytes())
        self._frames = frames
        self._stop = stop
        self._options = options
        self._telemetry = telemetry
        self._now = now
        self._clock = clock
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        """Held during calls of the store. Counting does not wait for it."""
        self._calls: dict[int, StoreCall] = {}
        """By thread."""
        self._count = 0
        self._kinds: Counter[RejectKind] = Counter()
        self._seen_kinds: set[RejectKind] = set()
        self.open = DeadLetterCounts(store, telemetry, clock)
        self._decoders: dict[str, Decoder] = {}
        self._private: set[str] = set()
        self.broken: BaseException | None = None

    def mask_source(self, source: str, decoder: Decoder, *, private: bool = False) -> None:
        """Store records of the source masked by its decoder.

        `private`: some values are masked, so keys are hashed with the secret.
        """
        self._decoders[source] = decoder
        if private:
            self._private.add(source)

    def get_hashes(self, source: str) -> KeyHashes:
        """The hash function for keys in dead letters of the source."""
        return self._secret() if source in self._private else UNKEYED_HASHES

    def keep_rejects(
        self, rows: F, raw: Sequence[F], *, stage: str, source: str, table: str, lane: str = ""
    ) -> list[StoredReject]:
        """Store `rows` as dead letters, durable on return. Returns one item per row.

        If `table` is empty, it is read from each record. DeadLetterStoreDown if the store cannot be written.
        """
        now = self._now()
        rejects = self._frames.rejected(rows, raw)
        tables = [table] * len(rejects)
        if not table and rejects and source in self._decoders:
            frame = pa.Table.from_pylist([_to_raw(one) for one in rejects], RAW)
            tables = [name or "" for name in self._decoders[source].envelope(frame)["table"].to_pylist()]
        try:
            hashes = self.get_hashes(source) if rejects else UNKEYED_HASHES
            key_hashes = (hashes.hash_key(one.key) for one in rejects)
            stored = zip(self._mask_records(source, rejects), key_hashes, tables, strict=True)
            dead_letters = [
                _make_dead_letter(rejected, error_text, stage=stage, source=source, table=table_name, lane=lane, now=now)
                for rejected, error_text, table_name in stored
            ]
            if dead_letters:
                self._call_with_patience(WRITING, lambda: self._store.write(dead_letters))
                self.open.invalidate()
        except BaseException as error:
            self.broken = error
            raise
        return [StoredReject(TopicPartition(x.topic, x.partition), x.offset, self._find_kind(x)) for x in dead_letters]

    def _find_kind(self, dead_letter: DeadLetter) -> RejectKind:
        """The kind of a dead letter. The first one of each kind is logged."""
        kind = RejectKind(dead_letter.source, dead_letter.table, dead_letter.stage, dead_letter.code)
        if kind not in self._seen_kinds and len(self._seen_kinds) >= MAX_KINDS:
            kind = RejectKind(dead_letter.source, OTHER, dead_letter.stage, OTHER)
        if kind not in self._seen_kinds:
            self._seen_kinds.add(kind)
            if self._options.log_rejects:
                remedy = find_remedy(Reject(dead_letter.code, dead_letter.sentence), dead_letter.table)
                explain = f"`replicator dlq explain '{dead_letter.event_id}'` shows it."
                log.warning(
                    "record rejected; more of its kind are only counted",
                    source=dead_letter.source,
                    table=dead_letter.table or "?",
                    record=dead_letter.event_id,
                    **({"lane": dead_letter.lane} if dead_letter.lane else {}),
                    stage=dead_letter.stage,
                    code=dead_letter.code,
                    sentence=dead_letter.sentence,
                    next_step=f"{remedy} {explain}".strip(),
                )
        return kind

    def _mask_records(self, source: str, rejected: Sequence[RejectedRecord]) -> Sequence[RejectedRecord]:
        decoder = self._decoders.get(source)
        mask_records = None if decoder is None else decoder.features.mask_records
        if mask_records is None or not rejected:
            return rejected
        frame = mask_records(pa.Table.from_pylist([_to_raw(one) for one in rejected], RAW))
        stored = zip(rejected, *(frame[name].to_pylist() for name in ("key", "value", "headers")), strict=True)
        return [replace(one, key=key, value=value, headers=to_pairs(headers)) for one, key, value, headers in stored]

    @property
    def store(self) -> DeadLetters:
        """The dead-letter store."""
        return self._store

    @property
    def call(self) -> StoreCall | None:
        """The oldest call of the store in progress; None if there is none."""
        return min(self._calls.copy().values(), key=lambda call: call.since, default=None)

    @property
    def total(self) -> int:
        """The number of rejected records."""
        return self._count

    @property
    def kinds(self) -> Mapping[RejectKind, int]:
        """The number of rejected records of each kind."""
        with self._lock:
            return dict(self._kinds)

    def publish_counts(self, kinds: Iterable[RejectKind]) -> None:
        """Add rejected records to the telemetry, by the kind of each."""
        counted = Counter(kinds)
        with self._lock:
            self._kinds.update(counted)
        for kind, records in counted.items():
            self._telemetry.record(RecordsRejected(kind.source, kind.table, kind.stage, kind.code, records))

    def count_records(self, records: int) -> None:
        """Count rejected records. TooManyRejects above `max_rejects`."""
        with self._lock:
            self._count += records
        most = self._options.max_rejects
        if records and most is not None and self._count > most:
            self.broken = TooManyRejects(
                f"Rejected: {format_count(self._count, 'record')}. `max_rejects` is {most}.",
                next_step="See them with `replicator dlq list`. Raise max_rejects to continue.",
            )
            raise self.broken

    def list_open(self, source: str) -> Sequence[DeadLetter]:
        """The open dead letters of a source from before fan-out. DeadLetterStoreDown if the store cannot be read."""
        letters: list[DeadLetter] = []
        self._call_with_patience(READING, lambda: letters.extend(self._store.read(DeadLetterFilter(lane="", state=OPEN))))
        return [letter for letter in letters if letter.source == source]

    def list_crashed(self, source: str) -> Sequence[DeadLetter]:
        """The dead letters of a source's poison records, retried ones included.

        DeadLetterStoreDown if the store cannot be read.
        """
        letters: list[DeadLetter] = []
        self._call_with_patience(
            READING, lambda: letters.extend(self._store.read(DeadLetterFilter(lane="", code=RejectCode.CRASHED)))
        )
        return [letter for letter in letters if letter.source == source]

    def _call_with_patience(self, doing: str, ask: Callable[[], None]) -> None:
        me = threading.get_ident()
        self._calls[me] = StoreCall(doing, self._now())
        try:
            self._call_with_retry(me, doing, ask)
        finally:
            del self._calls[me]

    def _call_with_retry(self, me: int, doing: str, ask: Callable[[], None]) -> None:
        backoff = Backoff(self._options.first_delay, self._options.longest_delay)
        deadline = self._clock() + self._options.reject_patience
        while True:
            try:
                with self._asking:
                    ask()
                return
            except Retryable as error:
                log.warning("dead-letter store away", sentence=error.sentence)
                self._calls[me] = replace(self._calls[me], error=error.sentence)
                if self._clock() >= deadline:
                    raise _make_store_error(error, doing) from error
                if backoff.wait(self._stop):
                    raise Stopped from error
            except Exception as error:
                raise _make_store_error(error, doing) from error


def _make_store_error(error: Exception, doing: str) -> DeadLetterStoreDown:
    """The error for a store that cannot be used, with the next step and exit code of its cause."""
    why, step, code = type(error).__name__, "", DeadLetterStoreDown.exit_code
    if isinstance(error, ReplicatorError):
        why, step, code = error.sentence, error.next_step, error.exit_code
    cannot, able = ("read from", "readable") if doing == READING else ("written to", "writable")
    down = DeadLetterStoreDown(
        f"Rejected records cannot be {cannot} the dead-letter store: {why}",
        next_step=f"{step.rstrip('.') or f'Make the store {able} (`dead_letters` in the configuration)'}. Then start again. "
        "Nothing is lost.",
    )
    down.exit_code = code
    return down


def _to_raw(rejected: RejectedRecord) -> dict[str, object]:
    names = ("topic", "partition", "offset", "timestamp", "key", "value")
    headers = None if rejected.headers is None else [{"name": n, "value": v} for n, v in rejected.headers]
    return {**{name: getattr(rejected, name) for name in names}, "headers": headers}


def to_pairs(headers: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]] | None:
    """Names and values of the headers of a raw frame."""
    return None if headers is None else [(one["name"], one["value"]) for one in headers]


def make_stop_error(rejected: RejectedRecord) -> DataLoss:
    """The error of a lane that is to stop at its first rejected record."""
    record = f"{rejected.topic}-{rejected.partition}-{rejected.offset}"
    return DataLoss(
        f"Record {record} was rejected as {Reject.parse(rejected.error).code}, and on_reject is stop_lane.",
        next_step=f"`replicator dlq explain {record}` shows why. Correct the configuration and start again: the lane reads "
        "it again. Or set on_reject to continue or hold_key to continue without it.",
    )


def _make_dead_letter(
    rejected: RejectedRecord, key_hash: str, *, stage: str, source: str, table: str, lane: str, now: datetime
) -> DeadLetter:
    reject = Reject.parse(rejected.error)
    return DeadLetter(
        event_id=f"{rejected.topic}-{rejected.partition}-{rejected.offset}",
        lane=lane,
        stage=stage,
        code=reject.code,
        sentence=reject.sentence,
        table=rejected.table or table,
        key_hash=key_hash,
        record=rejected.value,
        first_seen=now,
        last_seen=now,
        source=source,
        topic=rejected.topic,
        partition=rejected.partition,
        offset=rejected.offset,
        timestamp=rejected.timestamp,
        headers=headers_to_text(rejected.headers),
        key=rejected.key,
    )


def headers_to_text(headers: Sequence[tuple[str, bytes | None]] | None) -> str | None:
    """Headers as JSON, in the form of the archive transport."""
    return None if headers is None else json.dumps([[name, encode_bytes(value)] for name, value in headers])


def headers_from_text(text: str | None) -> list[tuple[str, bytes | None]] | None:
    """Headers from the result of `headers_to_text`."""
    return None if text is None else [(name, decode_bytes(value)) for name, value in json.loads(text)]


# Blocked keys: a rejected record blocks later records of its key, if so configured.

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
        # Raise DataLoss if stored key hashes cannot be compared, so that the blocked keys are unknown.
        if not all(self._hashes.is_comparable(key_hash) for _, _, key_hash in since):
            raise DataLoss(
                f"Source {self._source} has blocked keys that were hashed with another secret than `keys.secret` (in the "
                "folder of the erasure list). So it is unknown which later records must wait for them.",
                next_step="Restore that file from a copy. If masks are new, replay or purge the records (`replicator dlq`).",
            )
        free_records, blocked_records = self._frames.split_blocked(raw, since, BLOCKED_REASON, self._hashes)
        return free_records, blocked_records if self._frames.count(blocked_records) else None

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
                _add_key(self._since, dead_letter, dead_letter.key_hash if dead_letter.has_position else "")
        return self._since


def _add_key(since: dict[BlockedKey, int], one: RejectedRecord | DeadLetter, key_hash: str) -> bool:
    if not key_hash:
        return False
    at, after = (one.topic, one.partition, key_hash), one.offset + 1
    before = since.get(at)
    since[at] = after if before is None else min(before, after)
    return since[at] != before


def find_blocked(dead_letters: Iterable[DeadLetter], tried_ids: set[str]) -> dict[str, bool]:
    """The blocked dead letters (code HELD), by event id. True: an earlier record of the key is not retried with them.

    `dead_letters`: in the order of their records. `tried_ids`: the event ids to retry.
    """
    waiting: set[BlockedKey] = set()
    blocked: dict[str, bool] = {}
    for dead_letter in dead_letters:
        has_key = dead_letter.key_hash and dead_letter.has_position
        at = (dead_letter.topic, dead_letter.partition, dead_letter.key_hash) if has_key else None
        if dead_letter.code == RejectCode.HELD and at is not None:
            blocked[dead_letter.event_id] = at in waiting
        if at is not None and (dead_letter.event_id not in tried_ids or blocked.get(dead_letter.event_id)):
            waiting.add(at)
    return blocked
