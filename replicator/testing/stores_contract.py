"""The promises of the stores of `ports.stores`, as tests for adapters to inherit: dead letters, and events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import strategies as st

from replicator.domain.events import (
    AggregateHead,
    AppendedEvent,
    Event,
    NewEvent,
    StoredEvents,
    VersionConflict,
    find_heads,
    number_events,
    select_new,
    sort_events,
)
from replicator.ports.stores import ALL_DEAD_LETTERS, DeadLetter, DeadLetterFilter, DeadLetterGroup, DeadLetters, EventStore

from .contract import Contract

S = TypeVar("S", DeadLetters, EventStore)


class StoresBase(Contract, Generic[S]):
    """The factories of an adapter: a location, and stores at it."""

    def new_place(self) -> object:
        """A fresh, empty location for a store."""
        raise NotImplementedError

    def new_store(self, place: Any) -> S:
        """Another store at that location."""
        raise NotImplementedError

    @contextmanager
    def stores(self, count: int = 2) -> Iterator[list[S]]:
        """Stores at one fresh location, as in several processes."""
        location = self.new_place()
        stores = [self.new_store(location) for _ in range(count)]
        try:
            yield stores
        finally:
            for store in stores:
                store.close()


# The promises of a dead-letter store (`ports.stores`), as tests for adapters to inherit.

FIRST_TIME = datetime(2024, 2, 29, 12, tzinfo=UTC)
ODD_TEXT = "a 'quoted' \"name\" \\ with %, _ and \N{GREEK SMALL LETTER OMEGA}"


def make_dead_letter(number: int, lane: str = "lake.items", minutes: int = 0) -> DeadLetter:
    """An example dead letter, last seen `minutes` after `FIRST_TIME`."""
    seen = FIRST_TIME + timedelta(minutes=minutes)
    return DeadLetter(
        event_id=f"cdc.items-0-{number}",
        lane=lane,
        stage="decode",
        code="MALFORMED",
        sentence="not JSON",
        table="public.items",
        key_hash="ab12",
        record=b"\xff\x00",
        first_seen=seen,
        last_seen=seen,
        source="shop",
        topic="cdc.items",
        partition=0,
        offset=number,
        timestamp=FIRST_TIME,
        headers='[["name", {"base64": "/w=="}]]',
        key=b"\x00key",
    )


class DeadLetterContract(StoresBase[DeadLetters]):
    """Every promise of `ports.stores.DeadLetters` as a test. Define `new_place` and `new_store`."""

    def test_dead_letters_outlive_the_store(self) -> None:
        """All fields are stored, and every reader gets them newest first."""
        odd = replace(make_dead_letter(5, minutes=-2), sentence=ODD_TEXT, table=ODD_TEXT, lane=ODD_TEXT, event_id=ODD_TEXT)
        bare = replace(make_dead_letter(4, minutes=-1), record=None, key=None, headers=None, timestamp=None, key_hash="")
        letters = [make_dead_letter(1), make_dead_letter(2, minutes=2), make_dead_letter(3, "", minutes=1), bare, odd]
        with self.stores() as (store, other):
            assert list(other.read()) == []
            store.write(letters)
            store.write([])
            store.close()
            store.close()
            assert list(other.read()) == [letters[1], letters[2], letters[0], bare, odd]
            assert list(other.read(limit=1)) == [letters[1]]
            assert list(other.read(limit=0)) == []

    def test_repeated_dead_letter_is_stored_once(self) -> None:
        """`first_seen` stays, `last_seen` never goes back, attempts add up, also within one call. The last reason
        counts."""
        with self.stores() as (store, other):
            store.write([make_dead_letter(1), make_dead_letter(1, "other.items"), make_dead_letter(2)])
            store.write([make_dead_letter(1, minutes=5), make_dead_letter(1, minutes=6)])
            other.write([replace(make_dead_letter(1, minutes=3), code="OUT_OF_RANGE", record=b"new")])
            stored = {(each.event_id, each.lane): each for each in store.read()}
            assert len(stored) == 3
            seen = stored["cdc.items-0-1", "lake.items"]
            assert (seen.first_seen, seen.last_seen, seen.attempts) == (FIRST_TIME, FIRST_TIME + timedelta(minutes=6), 4)
            assert (seen.code, seen.record) == ("OUT_OF_RANGE", b"new")
            assert stored["cdc.items-0-2", "lake.items"].attempts == 1

    def test_dead_letters_are_filtered(self) -> None:
        """By every field of `DeadLetterFilter`. The filter applies before the limit."""
        late = replace(make_dead_letter(2, "", minutes=9), stage="route", code="NULL_KEY", table="public.orders")
        letters = [make_dead_letter(1), late, make_dead_letter(3, "mirror.items", minutes=1)]
        with self.stores() as (store, _):
            store.write(letters)
            store.mark([letters[2]], "replayed")
            letters[2] = replace(letters[2], state="replayed")
            for which in (
                ALL_DEAD_LETTERS,
                DeadLetterFilter(events=frozenset({"cdc.items-0-1", "cdc.items-0-3"})),
                DeadLetterFilter(lane="*.items"),
                DeadLetterFilter(lane=""),
                DeadLetterFilter(table="public.ord?rs"),
                DeadLetterFilter(table="public_orders"),
                DeadLetterFilter(code="NULL_KEY"),
                DeadLetterFilter(stage="route"),
                DeadLetterFilter(state="open"),
                DeadLetterFilter(before=FIRST_TIME + timedelta(minutes=1)),
                DeadLetterFilter(lane="lake.*", code="NULL_KEY"),
            ):
                due = [each for each in (letters[1], letters[2], letters[0]) if which.is_match(each)]
                assert list(store.read(which)) == due, which
                assert list(store.read(which, limit=1)) == due[:1], which

    def test_open_dead_letters_are_counted(self) -> None:
        """By source, table and lane. A repeated one counts once; replayed and removed ones do not count."""
        of_table, of_lane = (
            DeadLetterGroup("shop", "public.items", ""),
            DeadLetterGroup("shop", "public.items", "lake.items"),
        )
        unknown = DeadLetterGroup("shop", "", "")
        with self.stores() as (store, other):
            assert dict(store.count_open()) == {}
            store.write(
                [
                    make_dead_letter(1),
                    make_dead_letter(1),
                    make_dead_letter(2, ""),
                    make_dead_letter(3, ""),
                    replace(make_dead_letter(4, ""), table=""),
                ]
            )
            store.write([make_dead_letter(2, "", minutes=1)])
            assert dict(other.count_open()) == {of_table: 2, of_lane: 1, unknown: 1}
            read = {each.offset: each for each in store.read()}
            store.mark([read[2]], "replayed")
            store.remove([read[4]])
            assert dict(other.count_open()) == {of_table: 1, of_lane: 1}

    def test_a_repeated_dead_letter_is_not_marked(self) -> None:
        """A dead letter that was rejected again after the read stays open."""
        with self.stores() as (store, other):
            store.write([make_dead_letter(1), make_dead_letter(2), make_dead_letter(1, "other.items")])
            read = list(other.read())
            store.write([make_dead_letter(1, minutes=1)])
            other.mark(read, "replayed")
            other.mark([], "replayed")
            states = {(each.offset, each.lane): each.state for each in store.read()}
            assert states == {(1, "lake.items"): "open", (2, "lake.items"): "replayed", (1, "other.items"): "replayed"}
            store.write([make_dead_letter(2, minutes=2)])
            assert {each.state for each in other.read(DeadLetterFilter(events=frozenset({"cdc.items-0-2"})))} == {"open"}

    @pytest.mark.parametrize("change", ["mark", "remove"])
    def test_store_changes_dead_letters_of_another_store(self, change: str) -> None:
        """`mark` and `remove` affect dead letters that another store wrote, also if this store wrote before and did not
        read them."""
        with self.stores() as (store, other):
            store.write([make_dead_letter(1)])
            other.write([make_dead_letter(1, minutes=1), make_dead_letter(2)])
            read = list(store.read())
            other.write([make_dead_letter(1, minutes=2)])
            if change == "mark":
                store.mark(read, "replayed")
            else:
                store.remove(read)
            left = [each.offset for each in other.read(DeadLetterFilter(state="open"))]
            assert left == [1]

    def test_dead_letters_are_removed(self) -> None:
        """A removed dead letter that returns is new. A dead letter that was rejected again after the read stays."""
        with self.stores() as (store, other):
            store.write([make_dead_letter(1), make_dead_letter(2), make_dead_letter(3)])
            read = list(store.read())
            other.write([make_dead_letter(2, minutes=1)])
            store.remove(read)
            store.remove(read)
            store.remove([])
            assert [(each.offset, each.attempts) for each in other.read()] == [(2, 2)]
            other.write([make_dead_letter(3, minutes=7)])
            (back, _) = store.read()
            assert back == make_dead_letter(3, minutes=7)

    def test_random_history_equals_a_list(self) -> None:
        """Random writes, marks and removals of earlier reads, by two stores in turns."""
        steps = st.lists(
            st.tuples(st.sampled_from(["write", "mark", "remove", "read"]), st.sets(st.integers(0, 3), min_size=1)),
            max_size=8,
        )

        @self.for_all(steps=steps)
        def check(steps: list[tuple[str, set[int]]]) -> None:
            from .fakes import FakeDeadLetters  # noqa: PLC0415

            plain = FakeDeadLetters()
            seen: list[DeadLetter] = []
            with self.stores() as stores:
                for minute, (step, numbers) in enumerate(steps):
                    store = stores[minute % 2]
                    chosen = [each for each in seen if each.offset in numbers]
                    if step == "write":
                        new = [make_dead_letter(number, minutes=minute) for number in sorted(numbers)]
                        store.write(new)
                        plain.write(new)
                    elif step == "mark":
                        store.mark(chosen, "replayed")
                        plain.mark(chosen, "replayed")
                    elif step == "remove":
                        store.remove(chosen)
                        plain.remove(chosen)
                    else:
                        seen = list(store.read())
                    assert list(store.read()) == list(plain.read())


# The promises of an event store (`ports.stores`), as tests for adapters to inherit.

ODD_EVENT_TEXT = "a 'quoted' \"name\" \\ with %, %s, {} and \N{GREEK SMALL LETTER OMEGA}\n"
UNICODE_TEXT = "Ünïcode \N{GREEK SMALL LETTER OMEGA}"
HOSTILE = ("../../out", "/etc", "..", "a/b", "a%2Fb", "a=b", "it's", 'say "so"', "new\nline", UNICODE_TEXT)
"""Aggregate types with a meaning for folders, URLs or SQL."""
RACERS = 4


def make_sample_event(
    number: int, of: str = "C101", kind: str = "Customer", minutes: int | None = None, **more: Any
) -> NewEvent:
    """An example event with the id `event-<number>`."""
    fields: dict[str, Any] = {
        "event_id": f"event-{number}",
        "event_type": "Changed",
        "aggregate_id": of,
        "aggregate_type": kind,
        "event_data": {"number": str(number)},
        "at": None if minutes is None else FIRST_TIME + timedelta(minutes=minutes),
    }
    return NewEvent(**fields | more)


class EventStoreContract(StoresBase[EventStore]):
    """Every promise of `ports.stores.EventStore` as a test. Define `new_place` and `new_store`."""

    racers = RACERS

    def test_versions_are_counted_per_aggregate(self) -> None:
        """From 1, across writers and calls. The same id with another type is another aggregate."""
        with self.stores() as (store, other):
            assert store.version("Customer", "C101") == 0
            assert list(store.append([])) == []
            assert [
                a.event.event_version
                for a in store.append([make_sample_event(1), make_sample_event(2), make_sample_event(3, "C102")])
            ] == [1, 2, 1]
            assert [
                a.event.event_version for a in other.append([make_sample_event(4), make_sample_event(5, kind="Order")])
            ] == [3, 1]
            assert [a.event.event_version for a in store.append([make_sample_event(6, expected_version=3)])] == [4]
            versions = {(k, i): other.version(k, i) for k in ("Customer", "Order") for i in ("C101", "C102")}
            assert versions == {("Customer", "C101"): 4, ("Customer", "C102"): 1, ("Order", "C101"): 1, ("Order", "C102"): 0}

    def test_an_unexpected_version_is_a_conflict(self) -> None:
        """The error has both versions, and nothing is stored. Also for an aggregate without events."""
        with self.stores() as (store, other):
            store.append([make_sample_event(1, expected_version=0)])
            for stale in (0, 2):
                with pytest.raises(VersionConflict) as conflict:
                    other.append([make_sample_event(2, expected_version=stale)])
                assert (conflict.value.expected, conflict.value.found) == (stale, 1)
            with pytest.raises(VersionConflict):
                other.append([make_sample_event(3, "C102", expected_version=1)])
            other.append([make_sample_event(2, expected_version=1)])
            assert [e.event_id for e in store.read("Customer")] == ["event-1", "event-2"]

    def test_conflict_stores_no_event_of_the_call(self) -> None:
        """A conflict in one of several events stores none of them."""
        with self.stores() as (store, other):
            store.append([make_sample_event(1)])
            with pytest.raises(VersionConflict):
                store.append(
                    [
                        make_sample_event(2),
                        make_sample_event(3, "C102"),
                        make_sample_event(4, expected_version=1),
                        make_sample_event(5),
                    ]
                )
            assert (other.version("Customer", "C101"), other.version("Customer", "C102")) == (1, 0)
            done = store.append(
                [make_sample_event(2), make_sample_event(3, expected_version=2), make_sample_event(4, expected_version=3)]
            )
            assert [a.event.event_version for a in done] == [2, 3, 4]

    def test_a_repeated_id_changes_nothing(self) -> None:
        """With any other content and writer. The result is the stored event. Other events of the call are stored."""
        with self.stores() as (store, other):
            (first,) = store.append([make_sample_event(1, expected_version=0)])
            assert first.is_new
            for repeated in (
                make_sample_event(1, expected_version=0),
                make_sample_event(1, "C999", "Order", event_type="Other", event_data={"x": "y"}),
            ):
                (again,) = other.append([repeated])
                assert (again.event, again.is_new) == (first.event, False)
            done = other.append(
                [make_sample_event(2), make_sample_event(1), make_sample_event(2, "C102"), make_sample_event(3)]
            )
            assert [(a.event.event_id, a.event.event_version, a.is_new) for a in done] == [
                ("event-2", 2, True),
                ("event-1", 1, False),
                ("event-2", 2, False),
                ("event-3", 3, True),
            ]
            assert [e.event_version for e in store.read("Customer")] == [1, 2, 3]
            assert not store.read("Order")

    def test_events_outlive_the_store(self) -> None:
        """With all fields as given: unusual texts, null and empty values, empty maps."""
        odd = make_sample_event(
            2,
            ODD_EVENT_TEXT,
            ODD_EVENT_TEXT[:30],
            event_id=ODD_EVENT_TEXT,
            event_type=ODD_EVENT_TEXT,
            event_data={ODD_EVENT_TEXT: ODD_EVENT_TEXT, "": "", "none": None},
            minutes=1,
        )
        bare = make_sample_event(3, event_data={}, minutes=2)
        full = make_sample_event(1, metadata={"who": "me", "nested": '{"a":[1.10]}'}, minutes=0)
        before = datetime.now(UTC)
        with self.stores() as (store, other):
            assert list(other.read("Customer")) == []
            written = [a.event for a in store.append([full, odd, bare, make_sample_event(4, "C102")])]
            store.close()
            store.close()
            stored = [*other.read("Customer"), *other.read(ODD_EVENT_TEXT[:30])]
            assert sorted(stored, key=lambda e: e.event_id) == sorted(written, key=lambda e: e.event_id)
            left_out = ("at", "expected_version", "has_new_id")
            for new, event in zip((full, odd, bare), written[:3], strict=True):
                sent = {name: getattr(new, name) for name in new.__dataclass_fields__ if name not in left_out}
                sent |= {"metadata": dict(new.metadata), "created_at": new.at, "event_version": event.event_version}
                assert asdict(event) == sent
            assert before <= written[3].created_at <= datetime.now(UTC)
            assert store.version("Customer", "C101") == 2

    def test_events_are_filtered(self) -> None:
        """By aggregate, and by time, including that time."""
        news = [
            make_sample_event(1, minutes=3),
            make_sample_event(2, "C102", minutes=1),
            make_sample_event(3, minutes=4),
            make_sample_event(4, kind="Order", minutes=2),
        ]
        with self.stores() as (store, _):
            store.append(news)
            at = {m: FIRST_TIME + timedelta(minutes=m) for m in range(6)}
            assert _list_numbers(store.read("Customer")) == [2, 1, 3]
            assert _list_numbers(store.read("Customer", limit=2)) == [2, 1]
            assert _list_numbers(store.read("Customer", limit=0)) == []
            assert _list_numbers(store.read("Customer", "C101")) == [1, 3]
            assert _list_numbers(store.read("Customer", "C101", until=at[3])) == [1]
            assert _list_numbers(store.read("Customer", until=at[0])) == []
            assert _list_numbers(store.read("Customer", "C102", until=at[5], limit=5)) == [2]
            assert _list_numbers(store.read("Nothing")) == _list_numbers(store.read("Customer", "C999")) == []

    def test_time_does_not_go_back_within_an_aggregate(self) -> None:
        """An event with an earlier time than the version before gets the time of that version."""
        with self.stores() as (store, other):
            store.append([make_sample_event(1, minutes=5), make_sample_event(2, minutes=3)])
            other.append([make_sample_event(3, minutes=1), make_sample_event(4, "C102", minutes=1)])
            assert [(e.event_version, e.created_at) for e in store.read("Customer", "C101")] == [
                (version, FIRST_TIME + timedelta(minutes=5)) for version in (1, 2, 3)
            ]
            assert store.read("Customer", "C102")[0].created_at == FIRST_TIME + timedelta(minutes=1)

    def test_hostile_names_stay_separate(self) -> None:
        """Such names are plain text for every storage."""
        with self.stores() as (store, other):
            store.append([make_sample_event(n, kind, kind, event_type=kind) for n, kind in enumerate(HOSTILE)])
            for number, kind in enumerate(HOSTILE):
                assert _list_numbers(other.read(kind)) == _list_numbers(other.read(kind, kind)) == [number]
                assert other.version(kind, kind) == 1
            other.append([make_sample_event(100 + n, kind, kind, expected_version=1) for n, kind in enumerate(HOSTILE)])
            assert [store.version(kind, kind) for kind in HOSTILE] == [2] * len(HOSTILE)

    def test_concurrent_appends_of_one_version_have_one_winner(self) -> None:
        """Several writers append the same next version. All but one get the current version in the error."""
        with self.stores(self.racers) as stores:
            for version, base in enumerate((0, 10)):
                calls = [
                    partial(store.append, [make_sample_event(n, expected_version=version)])
                    for n, store in enumerate(stores, base)
                ]
                outcomes = call_at_once(calls)
                lost = [o for o in outcomes if isinstance(o, VersionConflict)]
                assert len(lost) == len(stores) - 1, outcomes
                assert {o.found for o in lost} == {version + 1}
            assert [e.event_version for e in stores[0].read("Customer")] == [1, 2]

    def test_concurrent_appends_get_consecutive_versions(self) -> None:
        """Every event is stored once, without a gap, also if several writers use the same id."""
        with self.stores(self.racers) as stores:

            def some(store: EventStore, number: int) -> Callable[[], object]:
                ids = (10 * number, 10 * number + 1, 7)  # All writers use 7.
                return lambda: [store.append([make_sample_event(n)]) for n in ids]

            outcomes = call_at_once([some(store, n + 1) for n, store in enumerate(stores)])
            assert all(isinstance(o, list) for o in outcomes), outcomes
            events = stores[0].read("Customer")
            assert [e.event_version for e in events] == list(range(1, 2 * len(stores) + 2))
            assert len({e.event_id for e in events}) == len(events)

    def test_random_history_equals_a_list(self) -> None:
        """Random appends by two stores in turns, with repeated ids, and right and wrong expected versions."""
        one = st.builds(
            make_sample_event,
            st.integers(0, 6),
            st.sampled_from(["C1", "C2"]),
            st.sampled_from(["Customer", "Order"]),
            st.integers(0, 3),
            expected_version=st.none() | st.none() | st.integers(0, 3),
        )

        @self.for_all(history=st.lists(st.lists(one, min_size=1, max_size=3), max_size=6))
        def check(history: list[list[NewEvent]]) -> None:
            plain = FakeEventStore()
            with self.stores() as stores:
                for turn, news in enumerate(history):
                    assert _append(stores[turn % 2], news) == _append(plain, news)
                for kind in ("Customer", "Order"):
                    assert list(stores[0].read(kind)) == list(plain.read(kind))


def _append(store: EventStore, news: list[NewEvent]) -> object:
    try:
        return list(store.append(news))
    except VersionConflict as conflict:
        return conflict.expected, conflict.found


def call_at_once(calls: Sequence[Callable[[], object]]) -> list[object]:
    """The result or exception of each call. All calls start together."""
    ready = threading.Barrier(len(calls))
    outcomes: list[object] = [None] * len(calls)

    def run(number: int) -> None:
        ready.wait()
        try:
            outcomes[number] = calls[number]()
        except Exception as error:
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def _list_numbers(events: Any) -> list[int]:
    return [int(e.event_data["number"]) for e in events]


# An event store in a list, for tests.


class FakeEventStore:
    """`ports.stores.EventStore` in memory."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._turn = threading.Lock()

    def append(self, events: Sequence[NewEvent]) -> Sequence[AppendedEvent]:
        with self._turn:
            stored = StoredEvents({e.event_id: e for e in self.events}, dict(find_heads(self.events)))
            done = number_events(events, stored, datetime.now(UTC))
            self.events += select_new(done)
            return done

    def read(
        self,
        aggregate_type: str,
        aggregate_id: str | None = None,
        *,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Sequence[Event]:
        matches = (e for e in self.events if e.aggregate_type == aggregate_type and aggregate_id in (None, e.aggregate_id))
        return sort_events(e for e in matches if until is None or e.created_at <= until)[:limit]

    def version(self, aggregate_type: str, aggregate_id: str) -> int:
        return find_heads(self.events).get((aggregate_type, aggregate_id), AggregateHead()).version

    def close(self) -> None:
        """See `ports.stores.EventStore.close`."""
