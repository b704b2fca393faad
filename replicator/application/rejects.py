"""Rejected records on their way to the dead-letter store."""

from __future__ import annotations

import json
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic

import pyarrow as pa
import structlog

from replicator.domain.archived import read, written
from replicator.domain.change import RAW
from replicator.domain.errors import (
    DataLoss,
    Fatal,
    Reject,
    RejectCode,
    ReplicatorError,
    Retryable,
    TooManyRejects,
)
from replicator.domain.key_hashes import PLAIN, KeyHashes
from replicator.domain.position import TopicPartition
from replicator.domain.remedies import remedy_of
from replicator.ports.dead_letters import OPEN, DeadLetter, DeadLetters, Which
from replicator.ports.decoder import Decoder, KeepsPrivate
from replicator.ports.engine import Engine
from replicator.ports.frames import F, Rejected, Stop
from replicator.ports.telemetry import Telemetry

from .dead_letter_counts import DeadLetterCounts
from .lanes import Clock, monotonic
from .options import Options
from .problem import Stopped
from .retry import Backoff

log = structlog.get_logger(__name__)

MOST_KINDS = 1_000
"""Kinds of rejects that are told apart. Names of tables come out of records, and what cannot be used may name anything."""
OTHER = "(other)"
READING = "reading what was rejected"
WRITING = "writing rejected records"


@dataclass(frozen=True, slots=True, order=True)
class RejectKind:
    """Rejects that are counted together. `table` is empty where it is not known."""

    source: str
    table: str
    stage: str
    code: str


@dataclass(frozen=True, slots=True)
class KeptReject:
    """A record that was rejected and is durable: where it was, and with what it is counted."""

    partition: TopicPartition
    offset: int
    kind: RejectKind


class StoreDown(Fatal):
    """The dead-letter store does not answer: the program stops rather than drop what it rejected."""


@dataclass(frozen=True, slots=True)
class StoreCall:
    """What the store is asked for, in words, and since when; `error`: what it said last, if it is asked again for that."""

    doing: str
    since: datetime
    error: str | None = None


class Rejects(Generic[F]):
    """Writes rejects, durable before anything moves past them. Safe for use from several threads.

    `secret`: the hashes of keys of private records; without it letters tell them until the program ends.
    `broken` holds the error after which nothing may go on, whatever a sink made of it on the way.
    """

    def __init__(
        self,
        store: DeadLetters,
        engine: Engine[F],
        stop: Stop,
        options: Options,
        telemetry: Telemetry,
        *,
        secret: Callable[[], KeyHashes] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Clock = monotonic,
    ) -> None:
        self._store = store
        self._secret = secret or partial(KeyHashes, secrets.token_bytes())
        self._engine = engine
        self._stop = stop
        self._options = options
        self._telemetry = telemetry
        self._now = now
        self._clock = clock
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        """Held while the store is asked; who only counts does not wait for it."""
        self._calls: dict[int, StoreCall] = {}
        """By thread."""
        self._count = 0
        self._kinds: Counter[RejectKind] = Counter()
        self._met: set[RejectKind] = set()
        self.open = DeadLetterCounts(store, telemetry, clock)
        self._decoders: dict[str, Decoder] = {}
        self._private: set[str] = set()
        self.broken: BaseException | None = None

    def veil(self, source: str, decoder: Decoder, *, private: bool = False) -> None:
        """Records of that source are kept as its decoder says that they may be stored. `private`: not whole, so that their
        keys are told under the secret."""
        self._decoders[source] = decoder
        if private:
            self._private.add(source)

    def hashes(self, source: str) -> KeyHashes:
        """How letters of that source tell keys."""
        return self._secret() if source in self._private else PLAIN

    def keep(self, rows: F, raw: Sequence[F], *, stage: str, source: str, table: str, lane: str = "") -> list[KeptReject]:
        """Durable when it returns; one for each of `rows`. `table` is empty where the stage does not know it:
        then it is what the record says. Raises StoreDown when they cannot be written."""
        now = self._now()
        found = self._engine.rejected(rows, raw)
        tables = [table] * len(found) if table else self._tables(source, found)
        try:
            hashes = self.hashes(source) if found else PLAIN
            stored = zip(self._veiled(source, found), (hashes.of(one.key) for one in found), tables, strict=True)
            letters = [
                _letter(rejected, told, stage=stage, source=source, table=of, lane=lane, now=now)
                for rejected, told, of in stored
            ]
            if letters:
                self._write(letters)
        except BaseException as error:
            self.broken = error
            raise
        return [KeptReject(TopicPartition(x.topic, x.partition), x.offset, self._kind_of(x)) for x in letters]

    def _tables(self, source: str, rejected: Sequence[Rejected]) -> list[str]:
        """The table that each record names, empty where that cannot be read."""
        if source not in self._decoders or not rejected:
            return [""] * len(rejected)
        frame = pa.Table.from_pylist([_raw(one) for one in rejected], RAW)
        return [name or "" for name in self._decoders[source].envelope(frame)["table"].to_pylist()]

    def _kind_of(self, letter: DeadLetter) -> RejectKind:
        """The kind of a letter; the first one of its kind is logged."""
        kind = RejectKind(letter.source, letter.table, letter.stage, letter.code)
        if kind not in self._met and len(self._met) >= MOST_KINDS:
            kind = RejectKind(letter.source, OTHER, letter.stage, OTHER)
        if kind not in self._met:
            self._met.add(kind)
            _log_first(letter)
        return kind

    def _veiled(self, source: str, rejected: Sequence[Rejected]) -> Sequence[Rejected]:
        decoder = self._decoders.get(source)
        if not isinstance(decoder, KeepsPrivate) or not rejected:
            return rejected
        frame = decoder.veiled(pa.Table.from_pylist([_raw(one) for one in rejected], RAW))
        stored = zip(rejected, *(frame[name].to_pylist() for name in ("key", "value", "headers")), strict=True)
        return [replace(one, key=key, value=value, headers=_pairs(headers)) for one, key, value, headers in stored]

    @property
    def store(self) -> DeadLetters:
        """Where they are kept."""
        return self._store

    @property
    def call(self) -> StoreCall | None:
        """What is waited for since longest; None when nothing is."""
        return min(self._calls.copy().values(), key=lambda call: call.since, default=None)

    @property
    def total(self) -> int:
        """How many records were rejected so far."""
        return self._count

    @property
    def kinds(self) -> Mapping[RejectKind, int]:
        """How many of each kind were rejected so far."""
        with self._lock:
            return dict(self._kinds)

    def tally(self, kinds: Iterable[RejectKind]) -> None:
        """Publish records that were rejected, by the kind of each."""
        counted = Counter(kinds)
        with self._lock:
            self._kinds.update(counted)
        for kind, records in counted.items():
            self._telemetry.rejected(kind.source, kind.table, kind.stage, kind.code, records)

    def count(self, records: int) -> None:
        """Count records that were rejected; TooManyRejects above what is allowed."""
        with self._lock:
            self._count += records
        most = self._options.max_rejects
        if records and most is not None and self._count > most:
            self.broken = TooManyRejects(
                f"{self._count} records were rejected, and max_rejects is {most}.",
                next_step="See them with `replicator dlq list`; raise max_rejects to go on.",
            )
            raise self.broken

    def open_letters(self, source: str) -> Sequence[DeadLetter]:
        """What was rejected of a source before lanes part, and not replayed. Raises StoreDown when it cannot be read."""
        found: list[DeadLetter] = []
        self._patiently(READING, lambda: found.extend(self._store.read(Which(lane="", state=OPEN))))
        return [letter for letter in found if letter.source == source]

    def crashed(self, source: str) -> Sequence[DeadLetter]:
        """The records of a source that are not decoded any more, replayed ones too. Raises StoreDown when they cannot be
        read."""
        found: list[DeadLetter] = []
        self._patiently(READING, lambda: found.extend(self._store.read(Which(lane="", code=RejectCode.CRASHED))))
        return [letter for letter in found if letter.source == source]

    def _write(self, letters: Sequence[DeadLetter]) -> None:
        self._patiently(WRITING, lambda: self._store.write(letters))
        self.open.invalidate()

    def _patiently(self, doing: str, ask: Callable[[], None]) -> None:
        me = threading.get_ident()
        self._calls[me] = StoreCall(doing, self._now())
        try:
            self._repeatedly(me, doing, ask)
        finally:
            del self._calls[me]

    def _repeatedly(self, me: int, doing: str, ask: Callable[[], None]) -> None:
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
                    raise _down(error, doing) from error
                if backoff.wait(self._stop):
                    raise Stopped from error
            except Exception as error:
                raise _down(error, doing) from error


def _log_first(letter: DeadLetter) -> None:
    remedy = remedy_of(Reject(letter.code, letter.sentence), letter.table)
    explain = f"`replicator dlq explain '{letter.event_id}'` shows it."
    log.warning(
        "record rejected; more of its kind are only counted",
        source=letter.source,
        table=letter.table or "?",
        record=letter.event_id,
        **({"lane": letter.lane} if letter.lane else {}),
        stage=letter.stage,
        code=letter.code,
        sentence=letter.sentence,
        next_step=f"{remedy} {explain}".strip(),
    )


def _down(error: Exception, doing: str) -> StoreDown:
    """Why the store cannot be used, with the next step and the exit code of what it raised."""
    why, step, code = type(error).__name__, "", StoreDown.exit_code
    if isinstance(error, ReplicatorError):
        why, step, code = error.sentence, error.next_step, error.exit_code
    cannot, able = ("read from", "readable") if doing == READING else ("written to", "writable")
    down = StoreDown(
        f"Rejected records cannot be {cannot} the dead-letter store: {why}",
        next_step=f"{step.rstrip('.') or f'Make the store {able} (`dead_letters` in the configuration)'}. Then start again: "
        "nothing is lost.",
    )
    down.exit_code = code
    return down


def _raw(rejected: Rejected) -> dict[str, object]:
    names = ("topic", "partition", "offset", "timestamp", "key", "value")
    headers = None if rejected.headers is None else [{"name": n, "value": v} for n, v in rejected.headers]
    return {**{name: getattr(rejected, name) for name in names}, "headers": headers}


def _pairs(headers: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]] | None:
    return None if headers is None else [(one["name"], one["value"]) for one in headers]


def stopped_by(rejected: Rejected) -> DataLoss:
    """Why a lane stops that is to stop at the first record it cannot use."""
    place = f"{rejected.topic}-{rejected.partition}-{rejected.offset}"
    return DataLoss(
        f"Record {place} was rejected as {Reject.parse(rejected.error).code}, and on_reject is stop_lane.",
        next_step=f"`replicator dlq explain {place}` says why. Correct the configuration and start again: the lane reads it "
        "again. Or set on_reject to continue or hold_key to go on without it.",
    )


def _letter(
    rejected: Rejected, key_hash: str, *, stage: str, source: str, table: str, lane: str, now: datetime
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
    return None if headers is None else json.dumps([[name, written(value)] for name, value in headers])


def headers_from_text(text: str | None) -> list[tuple[str, bytes | None]] | None:
    """What `headers_to_text` wrote."""
    return None if text is None else [(name, read(value)) for name, value in json.loads(text)]
