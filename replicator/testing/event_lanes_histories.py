"""The promises of a sink that is the event store, with concurrent writers and random histories; part of
`event_lanes_contract.EventLanesContract`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from replicator.domain.events import Event
from replicator.ports.engine import Engine
from replicator.ports.event_store import EventStore

from .event_lanes_base import EventLanesBase, EventStoreFixture, make_sample_event, retry_until_done
from .faults import FailAfterApply, Faulty
from .stored_outbox import OutboxRecords, SentEvent, refuse_gaps


class EventLanesHistories(EventLanesBase):
    """Races and histories."""

    def test_racing_with_programs_loses_and_doubles_nothing(self) -> None:
        """Two programs and a lane write to the same aggregates at the same time. Spans overlap, and some ids are
        shared."""
        count, shared = self.racing, "shared-"
        sent = [SentEvent(n, f"A{n % 2}", event_id=f"{shared}{n}" if n % 4 == 0 else "") for n in range(count)]
        outbox, engine = self.outbox(*sent), self.new_engine()
        with self.open_place() as place:
            sink, stores = place.sink(), [place.store(), place.store()]
            place.apply_write(sink, outbox.make_write(engine, 0, 0))
            failures: list[BaseException] = []

            def emit(store: EventStore, who: int) -> None:
                for number in range(count):
                    own = make_sample_event(number, f"A{number % 2}", event_id=f"program-{who}-{number}")
                    several = [own, make_sample_event(0, "A0", event_id=f"{shared}{number}")] if number % 4 == 0 else [own]
                    retry_until_done(lambda several=several: store.append(several))  # type: ignore[misc]

            threads = [_start_thread(failures, emit, store, who) for who, store in enumerate(stores)]
            for start in range(0, count, 2):
                write = outbox.make_write(engine, max(0, start - 1), min(count, start + 2))
                retry_until_done(lambda write=write: place.apply_write(sink, write))  # type: ignore[misc]
            for thread in threads:
                thread.join()
            assert not failures, failures
            found = place.store().read("order")
            refuse_gaps(found)
            programs = {f"program-{who}-{number}" for who in range(2) for number in range(count)}
            assert {e.event_id for e in found} == {one.id for one in sent} | programs

    def test_any_history_ends_as_a_list_would(self) -> None:
        """Random overlapping batches of two partitions, faults, restarts and program events. Versions follow the
        order in which events arrived first."""
        step = st.one_of(
            st.tuples(st.just("batch"), st.integers(0, 1), st.integers(0, 3), st.integers(1, 3)),
            st.tuples(st.just("emit"), st.integers(0, 1), st.integers(0, 9), st.just(0)),
            st.sampled_from([(name, 0, 0, 0) for name in ("lost", "anew")]),
        )

        @self.for_all(
            ids=st.lists(st.integers(0, 9), min_size=16, max_size=16),
            aggregates=st.lists(st.integers(0, 2), min_size=16, max_size=16),
            steps=st.lists(step, max_size=8),
        )
        def check(ids: list[int], aggregates: list[int], steps: list[tuple[str, int, int, int]]) -> None:
            sent = [SentEvent(number, f"A{of}") for number, of in zip(ids, aggregates, strict=True)]
            outbox, engine = self.outbox_of({0: sent[:8], 1: sent[8:]}), self.new_engine()
            with self.open_place() as place:
                run = _HistoryRun(place, outbox, engine)
                for name, number, back, length in steps:
                    run.run_step(name, number, back, length)
                found = place.store().read("order")
                refuse_gaps(found)
                wanted = [(e, f"A{n}") for n in range(3) for e in run.expected if run.of[e] == f"A{n}"]
                assert _list_versions(found) == wanted


@dataclass
class _HistoryRun:
    """A running history with its expected result: ids in the order of first arrival, with their aggregates."""

    place: EventStoreFixture
    outbox: OutboxRecords
    engine: Engine[Any]
    expected: list[str] = field(default_factory=list)
    of: dict[str, str] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})

    def __post_init__(self) -> None:
        self.sink: Any = Faulty(self.place.sink())
        self.store = self.place.store()

    def run_step(self, name: str, number: int, back: int, length: int) -> None:
        if name == "emit":
            event = make_sample_event(back, f"A{number}", event_id=f"sent-{back}")
            self.store.append([event])
            self._add_expected(event.event_id, event.aggregate_id)
        elif name == "lost":
            self.sink.schedule("apply", FailAfterApply())
        elif name == "anew":
            self.sink.close()
            self.sink = Faulty(self.place.sink())
        else:
            self._apply_batch(number, back, length)

    def _apply_batch(self, number: int, back: int, length: int) -> None:
        start, end = max(0, self.reached[number] - back), min(8, self.reached[number] + length)
        write = self.outbox.make_write(self.engine, {number: start}, {number: max(start, end)})
        retry_until_done(lambda: self.place.apply_write(self.sink, write))
        for one in self.outbox.records[number][self.reached[number] : end]:
            self._add_expected(one.id, str(one.of))
        self.reached[number] = max(end, self.reached[number])

    def _add_expected(self, event_id: str, of: str) -> None:
        if event_id not in self.of:
            self.of[event_id] = of
            self.expected.append(event_id)


def _list_versions(found: Sequence[Event]) -> list[tuple[str, str]]:
    return [(e.event_id, e.aggregate_id) for e in sorted(found, key=lambda e: (e.aggregate_id, e.event_version))]


def _start_thread(failures: list[BaseException], act: Callable[..., None], *arguments: Any) -> threading.Thread:
    def run() -> None:
        try:
            act(*arguments)
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    return thread
