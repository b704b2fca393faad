"""Events that programs emit: their content, their validation, and the versions of an aggregate.

An aggregate (type and id) has the versions 1, 2, 3 and so on, one per event, without gaps. An event is identified by
its id: an event whose id is already stored changes nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import msgspec

from .errors import Fatal

Aggregate = tuple[str, str]
"""Type and id."""
EVENT_STORE = "event_store"
"""The name of the store of events among sinks and inputs of projections, and its kind as a sink."""


class VersionConflict(Fatal):
    """The aggregate is not at the version that the event expects; nothing was stored."""

    def __init__(self, aggregate_type: str, expected: int, found: int) -> None:
        super().__init__(
            f"the aggregate, of type {aggregate_type!r}, is at version {found}, not {expected}",
            next_step="Read the aggregate's events, decide again, and emit with its current version.",
        )
        self.expected = expected
        self.found = found


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to store. Raises `InvalidEvent` if no store could hold it.

    `expected_version`: the aggregate's version before the event, 0 without events; None accepts any. `has_new_id`: the
    id was just generated, so no store can have it yet. `at`: the time of the event, by default the time of storing.
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
            raise InvalidEvent("expected_version is not a whole number of 0 or more")
        if self.at is not None and (not isinstance(self.at, datetime) or self.at.tzinfo is None):
            raise InvalidEvent("the time of the event has no time zone")

    @property
    def aggregate(self) -> Aggregate:
        """The aggregate of the event."""
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
    """An event from a caller's values; without an id it gets a new one. InvalidEvent if it cannot be stored."""
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
    """A stored event, with the columns of the store in their order. `created_at` is in UTC, and never before the
    aggregate's previous version."""

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
        """The aggregate of the event."""
        return self.aggregate_type, self.aggregate_id


@dataclass(frozen=True, slots=True)
class AppendedEvent:
    """A stored event; `is_new` if this call stored it."""

    event: Event
    is_new: bool


@dataclass(frozen=True, slots=True)
class AggregateHead:
    """The current version of an aggregate, and its time."""

    version: int = 0
    at: datetime | None = None


@dataclass(slots=True)
class StoredEvents:
    """The store's content for a list of new events: events with the same ids, and the heads of their aggregates."""

    stored: dict[str, Event] = field(default_factory=dict)
    heads: dict[Aggregate, AggregateHead] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventLimits:
    """Limits of an event: bytes of all its texts together, entries of each map, and nesting levels of a value."""

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


def number_events(events: Sequence[NewEvent], earlier: StoredEvents, now: datetime) -> list[AppendedEvent]:
    """The result of appending `events` to the `earlier` ones, in order. Events with a stored id stay as stored; all
    others are the next versions of their aggregates. Raises VersionConflict if an event expects another version."""
    stored, heads = dict(earlier.stored), dict(earlier.heads)
    appended_events = []
    for new in events:
        stored_event = stored.get(new.event_id)
        if stored_event is not None:
            appended_events.append(AppendedEvent(stored_event, is_new=False))
            continue
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
        appended_events.append(AppendedEvent(event, is_new=True))
    return appended_events


def select_new(appended: Iterable[AppendedEvent]) -> list[Event]:
    """The events to write."""
    return [each.event for each in appended if each.is_new]


def prepare_retry(new: NewEvent) -> NewEvent:
    """The same event for another attempt, after an attempt with unknown result."""
    return replace(new, has_new_id=False)


def sort_events(events: Iterable[Event]) -> list[Event]:
    """Events in order of time, events of one aggregate in order of version."""
    return sorted(events, key=lambda e: (e.created_at, e.aggregate_type, e.aggregate_id, e.event_version))


def find_heads(events: Iterable[Event]) -> Mapping[Aggregate, AggregateHead]:
    """The heads of the aggregates after these events."""
    heads: dict[Aggregate, AggregateHead] = {}
    for event in events:
        if event.event_version > heads.get(event.aggregate, AggregateHead()).version:
            heads[event.aggregate] = AggregateHead(event.event_version, event.created_at)
    return heads


# Rules for an event's ids and maps, and JSON values as the texts of a map.
#
# Maps are from text to text, so that every store returns the same. Text stays as it is, null stays null, and any other
# JSON value becomes its JSON text.

Texts = Mapping[str, str | None]

MAX_ID_BYTES = 500
"""PostgreSQL's indexes accept about five times as many."""
LONGEST_FOLDER = 255 - len("aggregate_type=")
RESERVED = "__HIVE_DEFAULT_PARTITION__"
DEEPEST = 500
NOT_PLAIN = re.compile(r"[^A-Za-z0-9_.-]")
STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
NULL = b"null"
ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class InvalidEvent(Fatal):
    """The event cannot be stored. The sentence names the fault, never a value."""


def check_id(name: str, value: object) -> str:
    """The text of an id; InvalidEvent if it cannot be one."""
    text = _check_text(name, value)
    if not text.strip():
        raise InvalidEvent(f"{name} is empty")
    if len(text.encode()) > MAX_ID_BYTES:
        raise InvalidEvent(f"{name} is longer than {MAX_ID_BYTES} bytes")
    return text


def check_type(value: object) -> str:
    """The text of an aggregate type. It also names a partition folder: there, letters, digits and `_.-` need one byte,
    and all other characters three times their bytes."""
    text = check_id("aggregate_type", value)
    plain = NOT_PLAIN.sub("", text)
    if len(plain) + 3 * (len(text.encode()) - len(plain)) > LONGEST_FOLDER or text == RESERVED:
        raise InvalidEvent("aggregate_type is reserved, or too long for the name of a partition")
    return text


def check_texts(name: str, value: object) -> None:
    """Raise InvalidEvent unless `value` is a map from text to text or null."""
    if not isinstance(value, Mapping):
        raise InvalidEvent(f"{name} is not a map")
    for key, text in value.items():
        _check_text(f"a name in {name}", key)
        if text is not None:
            _check_text(f"a value in {name}", text)


def to_texts(name: str, value: object) -> dict[str, str | None]:
    """A mapping of Python values as a map of texts; JSON text for values that are not text. InvalidEvent for anything
    else."""
    if not isinstance(value, Mapping):
        raise InvalidEvent(f"{name} is not a mapping of names to values")
    for key in value:
        _check_text(f"a name in {name}", key)
    texts: dict[str, str | None] = {}
    for key, one in value.items():
        if one is None or isinstance(one, str):
            texts[key] = one
        else:
            _refuse_other(name, one, 1)
            texts[key] = msgspec.json.encode(one).decode()
    return texts


def json_to_texts(name: str, value: Mapping[str, msgspec.Raw]) -> dict[str, str | None]:
    """A JSON object as a map of texts: numbers keep every digit that was sent."""
    texts: dict[str, str | None] = {}
    for key, encoded in value.items():
        raw = bytes(encoded)
        try:
            if raw == NULL:
                texts[key] = None
            elif raw.startswith(b'"'):
                texts[key] = msgspec.json.decode(raw, type=str)
            elif ESCAPED_NUL.search(raw):
                raise InvalidEvent(f"a value in {name} contains a NUL character, which PostgreSQL cannot store")
            else:
                texts[key] = msgspec.json.format(raw, indent=-1).decode()
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise InvalidEvent(f"a value in {name} is not JSON") from None
    return texts


def read_json(name: str, text: str) -> dict[str, str | None]:
    """The text of a JSON object as a map of texts; InvalidEvent if it is not a JSON object."""
    try:
        return json_to_texts(name, msgspec.json.decode(text, type=dict[str, msgspec.Raw]))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise InvalidEvent(f"{name} is not a JSON object") from None


def measure_depth(text: str) -> int:
    """The depth of nested brackets in JSON text; for other text at least that depth."""
    if text[:1] not in "[{":
        return 0
    depth = deepest = 0
    for match in STRUCTURE.finditer(text):
        if match[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif match[0] in "]}":
            depth -= 1
    return deepest


def _refuse_other(name: str, value: Any, depth: int) -> None:
    """Raise InvalidEvent for values that JSON cannot represent exactly."""
    if depth > DEEPEST:
        raise InvalidEvent(f"a value in {name} is nested deeper than {DEEPEST} levels")
    if isinstance(value, dict):
        for key, one in value.items():
            _check_text(f"a name in {name}", key)
            _refuse_other(name, one, depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            _refuse_other(name, one, depth + 1)
    elif isinstance(value, str):
        _check_text(f"a value in {name}", value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidEvent(f"a value in {name} is NaN or infinite, which JSON cannot represent")
    elif value is not None and not isinstance(value, bool | int | float):
        raise InvalidEvent(f"a value in {name} has type {type(value).__name__}, which JSON does not have: pass it as text")


def _check_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidEvent(f"{name} is {'NULL' if value is None else 'not text'}")
    if "\0" in value:
        raise InvalidEvent(f"{name} contains a NUL character, which PostgreSQL cannot store")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidEvent(f"{name} is not Unicode text") from None
    return value
