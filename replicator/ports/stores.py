"""The ports of stores: rejected records, facts about sources, and the events that programs emit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol

from replicator.domain.events import AppendedEvent, Event, NewEvent
from replicator.domain.position import Position, RecordPosition
from replicator.domain.transactions import Connector

if TYPE_CHECKING:  # Without it, the completion of names in a shell imports no pyarrow.
    from .sink import CompactionResult, VacuumResult

# Rejected records.


OPEN = "open"
REPLAYED = "replayed"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One rejected record.

    - `lane`: empty if the record was rejected before fan-out to lanes (stages `route` and `decode`), unless a retry
      rejected it again in a lane.
    - `stage`: one of `route`, `decode`, `shape`, `apply`.
    - `code`: the reason, one of `domain.errors.RejectCode` or a code of its decoder. `HELD` and `CRASHED` are no faults
      of the record: an earlier record of its key was rejected, or its decoding ended the program.
    - `record`, `key`: the raw value and key, as received. `key_hash` identifies the key without showing it.
    - `state`: `open`, or `replayed` once the record was applied after all.
    - `headers`: JSON text, in the form of the archive transport.
    - `attempts`: how often the record was rejected. `DeadLetters.write` adds it to the stored number.

    `source`, `topic`, `partition`, `offset`, `timestamp`, `headers` and `key` are empty in dead letters that were
    written before these fields existed.
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
    def record_position(self) -> RecordPosition:
        """The position of its record in the source."""
        return self.topic, self.partition, self.offset

    @property
    def has_position(self) -> bool:
        """True if it has the position of its record, so that the record can be built again."""
        return bool(self.topic) and self.offset >= 0

    @property
    def is_open(self) -> bool:
        """True until it is retried successfully."""
        return self.state == OPEN

    @property
    def retry(self) -> str:
        """The command that retries it."""
        return f"replicator dlq replay --event '{self.event_id}'" + (f" --lane '{self.lane}'" if self.lane else "")


@dataclass(frozen=True, slots=True, order=True)
class DeadLetterGroup:
    """Dead letters that are counted together. `table` is empty if it is not known, `lane` is as in `DeadLetter`."""

    source: str
    table: str
    lane: str


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """A filter for dead letters; all conditions that are set must match. Lanes and tables are names or globs. The lane
    of a dead letter from before fan-out is empty. `before`: it was last seen before this time."""

    events: frozenset[str] = frozenset()
    lane: str | None = None
    table: str | None = None
    code: str | None = None
    stage: str | None = None
    state: str | None = None
    before: datetime | None = None

    def is_match(self, letter: DeadLetter) -> bool:
        """True if the dead letter matches the filter."""
        pairs = ((self.code, letter.code), (self.stage, letter.stage), (self.state, letter.state))
        globs = ((self.lane, letter.lane), (self.table, letter.table))
        return (
            (not self.events or letter.event_id in self.events)
            and all(wanted in (None, actual) for wanted, actual in pairs)
            and all(glob is None or fnmatchcase(text, glob) for glob, text in globs)
            and (self.before is None or letter.last_seen < self.before)
        )


ALL_DEAD_LETTERS = DeadLetterFilter()


class DeadLetters(Protocol):
    """The dead-letter store. If it cannot write, it raises and the program stops: no reject is lost.

    Every adapter passes `testing.stores_contract.DeadLetterContract`. Safe for several threads; several processes
    may write at once.
    """

    @property
    def features(self) -> DeadLetterFeatures:
        """Everything that the store can do besides these methods. The same for all its life; needs no connection."""

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """Store dead letters; durable on return (test_dead_letters_outlive_the_store). Writing the same (event_id,
        lane) again keeps one dead letter: it is open, `last_seen` and `attempts` advance, all other fields have the
        newest values (test_repeated_dead_letter_is_stored_once)."""

    def read(self, which: DeadLetterFilter = ALL_DEAD_LETTERS, *, limit: int | None = None) -> Sequence[DeadLetter]:
        """The newest matching dead letters, in descending order of `last_seen`. Ties are in order of `event_id`, then
        `lane`, both compared as bytes. Empty if nothing was ever written (test_dead_letters_are_filtered)."""

    def count_open(self) -> Mapping[DeadLetterGroup, int]:
        """The number of open dead letters per group; empty if nothing was ever written
        (test_open_dead_letters_are_counted). Cheap: reads no record."""

    def mark(self, letters: Sequence[DeadLetter], state: str) -> None:
        """Set the state of dead letters that were read before; durable on return. A dead letter that was written again
        since then does not change (test_a_repeated_dead_letter_is_not_marked)."""

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        """Delete dead letters that were read before. A dead letter that was written again since then stays
        (test_dead_letters_are_removed)."""

    def close(self) -> None:
        """Release everything; may be called twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFeatures:
    """Everything that a dead-letter store can do besides the methods of `DeadLetters`. A field that is None is not
    supported."""

    versions: OlderVersions | None = None
    """Older versions of the store, which still contain removed dead letters."""

    compact: Callable[[], CompactionResult | None] | None = None
    """As `ports.sink.SinkFeatures.compact`, for the store."""

    vacuum: Callable[..., VacuumResult | None] | None = None
    """`vacuum(retain, dry_run=...)`: as `ports.sink.SinkFeatures.vacuum`, for the store."""


@dataclass(frozen=True, slots=True)
class OlderVersions:
    """Older versions of a store.

    - `describe()`: their location, for people; empty if there are none.
    - `end()`: remove them, so that no one can read them. Returns a text for people that names the remains.
    """

    describe: Callable[[], str]
    end: Callable[[], str]


# The register: facts about a source that a pipeline stores outside the targets.


@dataclass(frozen=True)
class RegisterEntry:
    """The facts about one source.

    - `topics`, `keys`: per table. A key is stored because some records (a truncate) do not contain it. A table without
      a key is not in `keys`.
    - `beginnings`: per lane the offset at which each of its partitions began.
    - `began`: the position of the source at first sight; None before the first start.
    - `connectors`: the connectors that wrote the records, each identity once.

    Targets own the progress of a lane. This entry only has the lanes, and the beginnings of partitions. A beginning
    stays here while a lane has applied nothing of the partition, even if other lanes have passed it.
    """

    topics: Mapping[str, frozenset[str]] = field(default_factory=dict)
    beginnings: Mapping[str, Position] = field(default_factory=dict)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    began: Position | None = None
    connectors: Sequence[Connector] = ()


class Register(Protocol):
    """Stores a `RegisterEntry` per source. Losing it is safe: the stream is read from the source's `start_from` again,
    and lanes skip the records that they have applied."""

    def load(self, source: str) -> RegisterEntry:
        """The entry that `save` stored last; empty if there is none."""

    def save(self, source: str, seen: RegisterEntry) -> None:
        """Replace the entry, completely or not at all; durable on return."""


# Events that programs emit.


class EventStore(Protocol):
    """An append-only store of events (`domain.events`).

    Every adapter passes `testing.stores_contract.EventStoreContract`. Safe for several threads; several processes may
    write at once (test_concurrent_appends_get_consecutive_versions).
    """

    def append(self, events: Sequence[NewEvent]) -> Sequence[AppendedEvent]:
        """Store events, all or none (test_conflict_stores_no_event_of_the_call); durable on return. Returns one result
        per event, in their order.

        An event gets the next version of its aggregate (test_versions_are_counted_per_aggregate). An event whose id is
        already stored, or occurs earlier in `events`, changes nothing. Its other values do not matter
        (test_a_repeated_id_changes_nothing). `VersionConflict` if the aggregate is not at the expected version. If
        several writers race for a version, one succeeds and all others fail with it
        (test_concurrent_appends_of_one_version_have_one_winner). After `Retryable` the events may or may not be stored:
        repeat the call with the same ids and without `has_new_id`.
        """

    def read(
        self,
        aggregate_type: str,
        aggregate_id: str | None = None,
        *,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Sequence[Event]:
        """The first `limit` events of a type or of one aggregate, stored up to and including `until`. They are in order
        of time, events of one aggregate in order of version. Empty if there are none (test_events_outlive_the_store,
        test_events_are_filtered)."""

    def version(self, aggregate_type: str, aggregate_id: str) -> int:
        """The aggregate's version; 0 if it has no events (test_versions_are_counted_per_aggregate)."""

    def close(self) -> None:
        """Release everything; may be called twice, and the store may be used again."""
