"""Events that programs emit themselves: what one says, what makes it valid, and how versions of an aggregate are counted.

An aggregate (type and id) has the versions 1, 2, 3 and so on, one per event, without gaps. An event is known by its id: one
whose id is there already changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import uuid4

from .errors import Fatal
from .event_texts import InvalidEvent, Texts, check_id, check_texts, check_type, measure_depth

Aggregate = tuple[str, str]
"""Type and id."""


class VersionConflict(Fatal):
    """The aggregate is not at the version at which the event was to follow; nothing was stored."""

    def __init__(self, aggregate_type: str, expected: int, found: int) -> None:
        super().__init__(
            f"the aggregate, of type {aggregate_type!r}, is at version {found}, not {expected}",
            next_step="Read its events, decide anew, and emit with the version that it has then.",
        )
        self.expected = expected
        self.found = found


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event that is to be stored. Raises `InvalidEvent` where it cannot be one, in any store.

    `expected_version`: that of the aggregate before it, 0 for one without events; None takes whatever it is. `has_new_id`:
    its id was just made, so no store can have it yet. `at`: when it happened, the moment of storing by default.
    """

    event_id: str
    event_type: str
    aggregate_id: str
    aggregate_type: str
    event_data: Texts
    metadata: Texts = field(default_factory=dict)
    expected_version: int | None = None
    has_new_id: bool = False
    at: datetime | None = None

    def __post_init__(self) -> None:
        for name in ("event_id", "event_type", "aggregate_id"):
            check_id(name, getattr(self, name))
        check_type(self.aggregate_type)
        check_texts("event_data", self.event_data)
        check_texts("metadata", self.metadata)
        version = self.expected_version
        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
            raise InvalidEvent("expected_version is no whole number from 0 on")
        if self.at is not None and (not isinstance(self.at, datetime) or self.at.tzinfo is None):
            raise InvalidEvent("the time of the event is none with a time zone")

    @property
    def aggregate(self) -> Aggregate:
        """Whose event it is."""
        return self.aggregate_type, self.aggregate_id


def make_event(
    aggregate_id: str,
    aggregate_type: str,
    event_type: str,
    event_data: Texts,
    metadata: Texts | None = None,
    *,
    expected_version: int | None = None,
    event_id: str | None = None,
) -> NewEvent:
    """An event as a caller says it; without an id it gets one. InvalidEvent where it cannot be one."""
    return NewEvent(
        event_id=str(uuid4()) if event_id is None else event_id,
        event_type=event_type,
        aggregate_id=aggregate_id,
        aggregate_type=aggregate_type,
        event_data=event_data,
        metadata={} if metadata is None else metadata,
        expected_version=expected_version,
        has_new_id=event_id is None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event as it is stored, with the columns of the store in their order. `created_at` is in UTC, and never before that
    of the aggregate's version before."""

    event_id: str
    event_type: str
    aggregate_id: str
    aggregate_type: str
    event_data: Texts
    metadata: Texts
    event_version: int
    created_at: datetime

    @property
    def aggregate(self) -> Aggregate:
        """Whose event it is."""
        return self.aggregate_type, self.aggregate_id


@dataclass(frozen=True, slots=True)
class AppendedEvent:
    """What became of an event: as it is stored, and whether that is new."""

    event: Event
    is_new: bool


@dataclass(frozen=True, slots=True)
class AggregateHead:
    """Where an aggregate stands."""

    version: int = 0
    at: datetime | None = None


@dataclass(slots=True)
class StoredEvents:
    """What a store has of the events that are to be appended: those with their ids, and the aggregates' heads."""

    stored: dict[str, Event] = field(default_factory=dict)
    heads: dict[Aggregate, AggregateHead] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventLimits:
    """The most that an event may hold: bytes of all its texts together, entries of each map, and levels of a value."""

    message_bytes: int = 16 * 1024 * 1024
    entries: int = 4096
    depth: int = 64

    def check(self, new: NewEvent) -> None:
        """Raise InvalidEvent for an event beyond the limits."""
        size = sum(len(text.encode()) for text in (new.event_id, new.event_type, *new.aggregate))
        for name, texts in (("event_data", new.event_data), ("metadata", new.metadata)):
            if len(texts) > self.entries:
                raise InvalidEvent(f"{name} has more than the {self.entries} entries allowed (limits.columns)")
            size += sum(len(key.encode()) + len((value or "").encode()) for key, value in texts.items())
        if size > self.message_bytes:
            raise InvalidEvent(f"the event is longer than the {self.message_bytes} bytes allowed (limits.message_bytes)")
        if any(measure_depth(value) > self.depth for value in (*new.event_data.values(), *new.metadata.values()) if value):
            raise InvalidEvent(f"a value is nested deeper than the {self.depth} levels allowed (limits.depth)")


def number_events(events: Sequence[NewEvent], known: StoredEvents, now: datetime) -> list[AppendedEvent]:
    """What the events become beside what is `known`, in their order: those whose id is there stay as they are there, the
    others are the next versions of their aggregates. Raises VersionConflict for one that was to follow another version."""
    stored, heads = dict(known.stored), dict(known.heads)
    return [_number_event(new, stored, heads, now) for new in events]


def _number_event(
    new: NewEvent, stored: dict[str, Event], heads: dict[Aggregate, AggregateHead], now: datetime
) -> AppendedEvent:
    there = stored.get(new.event_id)
    if there is not None:
        return AppendedEvent(there, is_new=False)
    head = heads.get(new.aggregate, AggregateHead())
    if new.expected_version not in (None, head.version):
        raise VersionConflict(new.aggregate_type, new.expected_version or 0, head.version)
    at = (new.at or now).astimezone(UTC)
    event = Event(
        event_id=new.event_id,
        event_type=new.event_type,
        aggregate_id=new.aggregate_id,
        aggregate_type=new.aggregate_type,
        event_data=dict(new.event_data),
        metadata=dict(new.metadata),
        event_version=head.version + 1,
        created_at=at if head.at is None else max(at, head.at),
    )
    stored[event.event_id] = event
    heads[event.aggregate] = AggregateHead(event.event_version, event.created_at)
    return AppendedEvent(event, is_new=True)


def select_new(appended: Iterable[AppendedEvent]) -> list[Event]:
    """Those that are to be written."""
    return [each.event for each in appended if each.is_new]


def prepare_retry(new: NewEvent) -> NewEvent:
    """The same event for another attempt, after one of which it is not known whether it succeeded."""
    return replace(new, has_new_id=False)


def sort_events(events: Iterable[Event]) -> list[Event]:
    """By time, and those of an aggregate by version."""
    return sorted(events, key=lambda e: (e.created_at, e.aggregate_type, e.aggregate_id, e.event_version))


def find_heads(events: Iterable[Event]) -> Mapping[Aggregate, AggregateHead]:
    """Where the aggregates of these events stand after them."""
    found: dict[Aggregate, AggregateHead] = {}
    for event in events:
        if event.event_version > found.get(event.aggregate, AggregateHead()).version:
            found[event.aggregate] = AggregateHead(event.event_version, event.created_at)
    return found
