"""The promises of a sink that is the event store: `ports.sink.Sink`, with a `ports.event_store.EventStore` at the
same location, as tests for adapters to inherit."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from replicator.domain.change import ERROR
from replicator.domain.errors import ConfigProblem, DataLoss, Fatal, Fenced, RejectCode, Retryable
from replicator.domain.policy.plan import LaneState
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span

from .event_lanes_base import make_sample_event
from .event_lanes_histories import EventLanesHistories
from .faults import FailAfterApply, FailBefore, Faulty
from .sink_base import fail_on_rejects
from .stored_outbox import FIRST_TIME, IDENTITY, TABLE, OutboxRecords, SentEvent, refuse_gaps


class EventLanesContract(EventLanesHistories):
    """An adapter defines `new_place`, `new_sink`, `new_store` and `new_engine`. Its sink rejects events longer than
    1500 bytes."""

    def test_events_become_versions_of_their_aggregates(self) -> None:
        """In record order within a partition, with all values, the record position in the metadata, and times that
        never go back."""
        sent = [
            SentEvent(0, minutes=5),
            SentEvent(1, "A2", minutes=1),
            SentEvent(2, minutes=3),
            SentEvent(3, payload="{}", type="Odd \u00e9"),
        ]
        outbox, engine = self.outbox(*sent), self.new_engine()
        with self.open_place() as place:
            sink = place.sink()
            assert sink.state(outbox.lane) is None
            applied = place.apply_write(sink, outbox.make_write(engine, 0, 4))
            assert (applied.counts.applied, applied.counts.total) == (4, 4)
            found = place.store().read("order", "A1")
            assert [(e.event_id, e.event_version) for e in found] == [("sent-0", 1), ("sent-2", 2), ("sent-3", 3)]
            first = found[0]
            assert first.event_data == {"total": "1.10", "names": '["\u00e9",null]', "none": None, "who": "me"}
            assert first.metadata == {"topic": "shop.public.outbox.order", "partition": "0", "offset": "0"}
            assert (first.event_type, first.created_at) == ("Placed", FIRST_TIME + timedelta(minutes=5))
            assert found[1].created_at == first.created_at and found[2].event_type == "Odd \u00e9"
            assert place.store().version("order", "A2") == 1

    def test_state_is_committed_with_the_events(self) -> None:
        """Position, topic identity and the plan's rule. Another instance reads them and continues there."""
        outbox, engine = self.outbox(SentEvent(0), SentEvent(1)), self.new_engine()
        with self.open_place() as place:
            sink = place.sink()
            write = outbox.make_write(engine, 0, 1)
            place.apply_write(sink, write)
            sink.close()
            other = place.sink()
            state = other.state(outbox.lane)
            assert state is not None
            assert (state.position, dict(state.identity), state.rule) == (write.span.end, IDENTITY, write.plan.rule)
            assert (
                place.apply_write(other, outbox.make_write(engine, 1, 2)).position
                == outbox.make_write(engine, 1, 2).span.end
            )
            assert [e.event_version for e in place.store().read("order")] == [1, 2]

    def test_redelivery_changes_nothing(self) -> None:
        """Only the new part of an overlapping span is applied. The records below it count as duplicates."""
        outbox, engine = self.outbox(*map(SentEvent, range(5))), self.new_engine()
        with self.open_place() as place:
            sink = place.sink()
            place.apply_write(sink, outbox.make_write(engine, 0, 3))
            before = place.store().read("order")
            for start, end in ((0, 3), (1, 2), (0, 1)):
                counts = place.apply_write(sink, outbox.make_write(engine, start, end)).counts
                assert (counts.duplicate, counts.total) == (end - start, end - start)
            assert place.store().read("order") == before
            counts = place.apply_write(sink, outbox.make_write(engine, 1, 5)).counts
            assert (counts.applied, counts.duplicate) == (2, 2)
            assert [e.event_id for e in place.store().read("order")] == [f"sent-{n}" for n in range(5)]

    def test_a_repeated_id_is_no_event(self) -> None:
        """With any content, in the same batch, a later one, or from a program. The position moves over it."""
        again = [
            SentEvent(1),
            SentEvent(1, "A9", payload='{"x": 1}'),
            SentEvent(2),
            SentEvent(3, event_id="emitted-0"),
            SentEvent(1),
            SentEvent(4),
        ]
        outbox, engine = self.outbox(SentEvent(0), *again), self.new_engine()
        with self.open_place() as place:
            sink, store = place.sink(), place.store()
            store.append([make_sample_event(0, "A5")])
            place.apply_write(sink, outbox.make_write(engine, 0, 1))
            write = outbox.make_write(engine, 1, 5)
            counts = place.apply_write(sink, write).counts + write.folded.counts  # The fold drops duplicates within a batch.
            assert (counts.applied, counts.duplicate) == (2, 2)
            counts = place.apply_write(sink, outbox.make_write(engine, 5, 6)).counts
            assert (counts.applied, counts.duplicate) == (0, 1)
            assert not store.append([make_sample_event(9, "A1", event_id="sent-0")])[0].is_new
            place.apply_write(sink, outbox.make_write(engine, 6, 7))
            found = store.read("order")
            assert {e.event_id for e in found} == {"emitted-0", "sent-0", "sent-1", "sent-2", "sent-4"}
            refuse_gaps(found)

    def test_programs_and_lanes_count_together(self) -> None:
        """Each continues the version numbers of the other."""
        outbox, engine = self.outbox(*map(SentEvent, range(3))), self.new_engine()
        with self.open_place() as place:
            sink, store = place.sink(), place.store()
            for number in range(3):
                assert store.append([make_sample_event(number)])[0].event.event_version == 2 * number + 1
                place.apply_write(sink, outbox.make_write(engine, number, number + 1))
            assert store.append([replace(make_sample_event(7), expected_version=6)])[0].event.event_version == 7
            refuse_gaps(store.read("order"))

    def test_other_lanes_keep_their_positions(self) -> None:
        """Lanes of other tables share the store and the aggregates."""
        engine = self.new_engine()
        orders, others = (
            self.outbox(*map(SentEvent, range(3))),
            self.outbox(*(SentEvent(n) for n in range(10, 13)), into="others"),
        )
        with self.open_place() as place:
            sink = place.sink()
            for number in range(3):
                for one in (orders, others):
                    place.apply_write(sink, one.make_write(engine, number, number + 1))
            ids = [f"sent-{n}" for pair in zip(range(3), range(10, 13), strict=True) for n in pair]
            assert [e.event_id for e in place.store().read("order", "A1")] == ids
            sink.reset(orders.lane)
            assert sink.state(orders.lane) is None
            assert _read_position(sink, others) == others.make_write(engine, 2, 3).span.end

    def test_rejects_are_durable_first(self) -> None:
        """If rejects cannot be stored, nothing is stored. Otherwise each reject has its reason, and the others are
        stored."""
        wrong = {
            "payload": [SentEvent(1, payload='["a"]'), SentEvent(2, payload="7"), SentEvent(3, payload=None)],
            "NUL": [SentEvent(4, payload='{"a":"\\u0000"}')],
            "type": [SentEvent(5, type=None), SentEvent(6, type=" ")],
            "aggregate_id": [SentEvent(7, of=None), SentEvent(8, of="x" * 501)],
            "aggregate_type": [SentEvent(9, kind=None), SentEvent(10, kind="")],
            "longer than": [SentEvent(11, payload='{"a": "' + "x" * 2000 + '"}')],
        }
        refused = [sent for several in wrong.values() for sent in several]
        outbox, engine = self.outbox(SentEvent(0), *refused, SentEvent(12)), self.new_engine()
        with self.open_place() as place:
            sink, write = place.sink(), outbox.make_write(engine, 0, len(refused) + 2)
            sink.prepare(write.lane, write.plan)
            with pytest.raises(Fatal, match="disk full"):
                sink.apply([write], fail_on_rejects)
            assert place.store().read("order") == [] and sink.state(write.lane) is None
            counts = place.apply_write(sink, write).counts
            assert (counts.applied, counts.rejected) == (2, len(refused))
            assert [e.event_id for e in place.store().read("order")] == ["sent-0", "sent-12"]
            told = {row["_offset"]: row[ERROR] for row in place.rejects}
            names = [name for name, several in wrong.items() for _ in several]
            for offset, name in enumerate(names, 1):
                assert told[offset].startswith(f"{RejectCode.NO_EVENT}: ") and name in told[offset], (name, told[offset])

    def test_a_gap_is_refused(self) -> None:
        """Nothing is stored then."""
        outbox, engine = self.outbox(*map(SentEvent, range(4))), self.new_engine()
        with self.open_place() as place:
            sink = place.sink()
            place.apply_write(sink, outbox.make_write(engine, 0, 1))
            with pytest.raises(DataLoss):
                place.apply_write(sink, outbox.make_write(engine, 2, 4))
            assert len(place.store().read("order")) == 1

    def test_an_empty_write_advances_the_position(self) -> None:
        """Also a write with known events only. Neither stores anything."""
        outbox, engine = self.outbox(SentEvent(0), SentEvent(0)), self.new_engine()
        with self.open_place() as place:
            sink = place.sink()
            place.apply_write(sink, outbox.make_write(engine, 0, 1))
            place.apply_write(sink, outbox.make_write(engine, 1, 2))
            empty = outbox.make_write(engine, 2, 2)
            empty = replace(empty, span=Span(empty.span.end, Position({outbox.get_partition(0): 9})))
            assert place.apply_write(sink, empty).counts.total == 0
            assert _read_position(sink, outbox) == empty.span.end
            assert len(place.store().read("order")) == 1

    def test_what_failed_is_repeated(self) -> None:
        """A call may fail before it starts, or lose its answer. A retry stores each event once."""
        for fault in (FailBefore(), FailAfterApply()):
            outbox, engine = self.outbox(*map(SentEvent, range(3))), self.new_engine()
            with self.open_place() as place:
                sink = Faulty(place.sink())
                place.apply_write(sink, outbox.make_write(engine, 0, 1))
                sink.schedule("apply", fault)
                with pytest.raises(Retryable):
                    place.apply_write(sink, outbox.make_write(engine, 1, 3))
                counts = place.apply_write(sink, outbox.make_write(engine, 1, 3)).counts
                assert counts.applied == (2 if isinstance(fault, FailBefore) else 0)
                assert [e.event_version for e in place.store().read("order")] == [1, 2, 3]

    def test_an_out_of_band_event_is_the_next_version(self) -> None:
        """A skipped event becomes the next version, once, and the position stays."""
        outbox, engine = self.outbox(*map(SentEvent, range(3))), self.new_engine()
        with self.open_place() as place:
            sink = place.sink()
            place.apply_write(sink, outbox.make_write(engine, 1, 3))
            for applied in (1, 0):
                assert place.apply_write(sink, outbox.make_write(engine, 0, 1, out_of_band=True)).counts.applied == applied
                assert _read_position(sink, outbox) == outbox.make_write(engine, 1, 3).span.end
            assert [e.event_id for e in place.store().read("order")] == ["sent-1", "sent-2", "sent-0"]

    def test_a_lane_that_starts_over_changes_nothing(self) -> None:
        """`reset` removes the position but keeps the events, so they return as duplicates. `skip` leaves events out."""
        outbox, engine = self.outbox(*map(SentEvent, range(4))), self.new_engine()
        with self.open_place() as place:
            sink = place.sink()
            place.apply_write(sink, outbox.make_write(engine, 0, 2))
            before = place.store().read("order")
            sink.reset(outbox.lane)
            assert sink.state(outbox.lane) is None
            assert place.apply_write(sink, outbox.make_write(engine, 0, 2)).counts.duplicate == 2
            assert place.store().read("order") == before
            sink.skip(outbox.lane, LaneState(Position({outbox.get_partition(0): 3})))
            place.apply_write(sink, outbox.make_write(engine, 3, 4))
            assert [(e.event_id, e.event_version) for e in place.store().read("order")][2:] == [("sent-3", 3)]

    def test_a_second_instance_is_fenced(self) -> None:
        """At its next commit at the latest. Only one of the two stores the events."""
        outbox, engine = self.outbox(*map(SentEvent, range(2))), self.new_engine()
        with self.open_place() as place:
            first, second = place.sink(), place.sink()
            place.apply_write(first, outbox.make_write(engine, 0, 1))
            with pytest.raises(Fenced):
                place.apply_write(second, outbox.make_write(engine, 1, 2))
                place.apply_write(first, outbox.make_write(engine, 1, 2))
            refuse_gaps(place.store().read("order"))

    def test_another_policy_is_refused(self) -> None:
        """Events are only appended."""
        with self.open_place() as place:
            for policy in ("scd1", "scd2"):
                with pytest.raises(ConfigProblem, match=r"does not (apply|support) policy"):
                    place.sink().prepare(replace(self.outbox().lane, policy=policy), plan_for(policy, TABLE))


def _read_position(sink: Any, outbox: OutboxRecords) -> Position:
    state = sink.state(outbox.lane)
    assert state is not None
    return state.position  # type: ignore[no-any-return]
