"""Rejected records: durable before any position passes them, and never dropped."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from queue import Queue

import pytest
from structlog.testing import capture_logs
from support.application_world import QUICK, ReplicatedTuples, await_condition
from support.histories_of_items import make_change
from support.tuple_engine import TupleRecord

from replicator.application.operations import status
from replicator.application.operations.status import StatusReporter
from replicator.application.quarantine.rejects import DeadLetterStoreDown
from replicator.application.stream.batch_decoder import CountedSpans
from replicator.domain.errors import EnvironmentProblem, ExitCode, Fatal, Retryable
from replicator.domain.position import Position, Span, TopicPartition

T0 = TopicPartition("t", 0)
BAD = [
    make_change(0, "c", 1),
    TupleRecord("t", 0, 1, kind="bad_route", key=7),
    TupleRecord("t", 0, 2, kind="bad_decode", key=8),
    make_change(3, "u", 1),
]
INCOMPLETE = [make_change(0, "c", 1), make_change(1, "u", 9, unsent=("name",))]


def test_each_stage_stores_the_record_and_hashes_the_key():
    world = ReplicatedTuples([*BAD, *[replace(r, offset=r.offset + 4, seq=9 + r.offset) for r in INCOMPLETE]])
    assert world.start().once() is ExitCode.OK
    letters = {(x.event_id, x.lane): x for x in world.letters.values()}
    assert {(k, x.stage, x.code) for k, x in letters.items()} == {
        (("t-0-1", ""), "route", "MALFORMED"),
        (("t-0-2", ""), "decode", "OUT_OF_RANGE"),
        (("t-0-5", "a.items"), "apply", "INCOMPLETE"),
    }
    first = letters["t-0-1", ""]
    assert first.key_hash == hashlib.sha256(b"7").hexdigest() and first.record == repr(BAD[1]).encode()
    assert letters["t-0-5", "a.items"].record is not None


def test_dead_letters_are_durable_before_any_position_passes_them():
    world = ReplicatedTuples([*BAD, *[replace(r, offset=r.offset + 4, seq=9 + r.offset) for r in INCOMPLETE]], cuts=(2,))
    running = world.start()
    for name in ("a", "b", "raw"):
        sink = running.sinks[name]

        def check(writes, name=name):
            for write in writes:
                for partition, end in write.span.end.items():
                    for bad in (1, 2):
                        if write.span.start[partition] <= bad < end:
                            assert (f"t-0-{bad}", "") in world.letters, f"{name} passed record {bad}"

        sink.before_apply = check
    assert running.once() is ExitCode.OK
    calls = running.machine.calls
    assert calls.index("letters.write") < calls.index("a.commit")


def test_failing_dead_letter_store_ends_the_program_before_any_commit():
    for log in (BAD[1:], INCOMPLETE[1:]):
        world = ReplicatedTuples([replace(r, offset=i) for i, r in enumerate(log)])
        running = world.start()
        running.letters.fail = lambda: OSError("disk full")
        assert running.once() is ExitCode.RUNTIME
        assert "dead-letter store" in running.supervisor.problem.sentence
        assert world.targets.get("a.items") is None or world.targets["a.items"].state is None
        world.letters.clear()
        assert world.start().once() is ExitCode.OK
        assert world.letters


def test_offsets_are_counted_once_per_table():
    at, spans = TopicPartition("t", 0), CountedSpans()

    def new(start: int, end: int, table: str = "items") -> list[range]:
        return spans.add(table, Span(Position({at: start}), Position({at: end})))[at]

    assert new(10, 20) == [range(10, 20)] and new(40, 50) == [range(40, 50)]
    assert new(0, 60) == [range(0, 10), range(20, 40), range(50, 60)]
    assert new(5, 55) == [] and new(60, 61) == [range(60, 61)]
    assert new(5, 6, "others") == [range(5, 6)]


def test_sink_cannot_hide_a_failure_of_the_store():
    world = ReplicatedTuples(INCOMPLETE)
    running = world.start()
    running.letters.fail = lambda: OSError("disk full")
    apply = running.sinks["a"].apply

    def hiding(writes, reject):
        try:
            return apply(writes, reject)
        except Exception as error:
            raise Fatal("something of mine") from error

    running.sinks["a"].apply = hiding
    assert running.once() is ExitCode.RUNTIME
    assert "dead-letter store" in running.supervisor.problem.sentence


def test_rejects_of_a_lane_added_after_an_event_log_are_counted():
    """The main stream has passed these records. A second lane reads them again, and they are not counted again."""
    log = [make_change(0, "c", 1), *(TupleRecord("t", 0, n, kind="bad_decode", key=n) for n in range(1, 6))]
    world = ReplicatedTuples(log, lanes={"public.items": []})
    running = world.start()
    assert running.once() is ExitCode.OK and running.supervisor.rejected_count == 0
    world.lanes = {"public.items": [("a", "scd1"), ("b", "append")]}
    running = world.start()
    assert running.once() is ExitCode.OK and len(world.letters) == 5
    assert (running.supervisor.rejected_count, running.telemetry.rejects.total()) == (5, 5)
    world.lanes["public.items"].append(("c", "append"))
    again = world.start()
    assert again.once() is ExitCode.OK and again.supervisor.rejected_count == 0, "they were counted for the other lanes"
    world.targets.clear()
    world.options = replace(QUICK, max_rejects=4)
    assert world.start().once() is ExitCode.REJECTS


def test_record_rejected_in_two_attempts_is_counted_once():
    running = ReplicatedTuples(INCOMPLETE).start()
    apply = running.sinks["a"].apply
    running.sinks["a"].apply = lambda writes, reject: apply(
        writes, lambda lane, rows: [reject(lane, rows) for _attempt in range(2)]
    )
    assert running.once() is ExitCode.OK
    assert running.telemetry.rejects.total() == running.supervisor.rejected_count == 1


def test_failing_store_ends_the_program_with_its_next_step_and_code():
    error = EnvironmentProblem("A record is too large.", next_step="Raise max.message.bytes.")
    running = ReplicatedTuples(BAD).start()
    running.letters.fail = lambda: error
    assert running.once() is ExitCode.ENVIRONMENT
    problem = running.supervisor.problem
    assert problem.sentence == "Rejected records cannot be written to the dead-letter store: A record is too large."
    assert problem.next_step == "Raise max.message.bytes. Then start again. Nothing is lost."
    running.letters.read = lambda which: (_ for _ in ()).throw(error)
    with pytest.raises(DeadLetterStoreDown, match="cannot be read from"):
        running.shared.rejects.list_open("s")


def test_unreachable_store_is_retried_up_to_the_patience():
    world = ReplicatedTuples(BAD)
    running = world.start()
    failures = [Retryable("away")] * 2
    running.letters.fail = lambda: failures.pop() if failures else None
    assert running.once() is ExitCode.OK and len(world.letters) == 2
    world = ReplicatedTuples(BAD)
    running = world.start()
    running.letters.fail = lambda: Retryable("away")
    assert running.once() is ExitCode.RUNTIME


def test_too_many_rejects_end_the_program():
    world = ReplicatedTuples(BAD)
    world.options = replace(world.options, max_rejects=1)
    running = world.start()
    assert running.once() is ExitCode.REJECTS
    assert len(world.letters) == 2
    world.options = replace(world.options, max_rejects=2)
    assert world.start().once() is ExitCode.OK


def test_too_many_rejects_of_a_sink_end_the_program():
    world = ReplicatedTuples(INCOMPLETE)
    world.options = replace(world.options, max_rejects=0)
    assert world.start().once() is ExitCode.REJECTS


class Stopping(ReplicatedTuples):
    """Lanes that stop at the first record they reject."""

    def rules(self, table):
        found = super().rules(table)
        return found and replace(found, lanes=tuple(replace(lane, stops=lane.sink == "a") for lane in found.lanes))


def test_lane_stops_at_its_reject_and_others_continue():
    world = Stopping(
        [*INCOMPLETE, make_change(2, "u", 1)], lanes={"public.items": (("a", "scd1"), ("b", "append"))}, cuts=(1, 2)
    )
    running = world.start()
    assert running.once() is ExitCode.DATA_LOSS
    assert running.supervisor.problem.sentence == "Record t-0-1 was rejected as INCOMPLETE, and on_reject is stop_lane."
    assert ("t-0-1", "a.items") in world.letters
    stopped, other = (world.targets[lane].state for lane in ("a.items", "b.items"))
    assert stopped is None or list(stopped.position.values()) == [1]
    assert list(other.position.values()) == [3]


def test_wait_for_the_store_is_reported(monkeypatch):
    """The status does not wait for the store, and does not look healthy."""
    monkeypatch.setattr(status, "LONG_CALL", timedelta(seconds=0.05))
    options = replace(QUICK, reject_patience=10.0)
    running = ReplicatedTuples(BAD, options=options).start()
    answers, reports = Queue(), StatusReporter([running.pipeline], running.shared)
    running.letters.fail = lambda: answers.get(timeout=10)
    running.in_background()
    seen = wait_for(reports, lambda call: call is not None)
    assert (seen["doing"], seen["error"]) == ("writing rejected records", None)
    assert datetime.fromisoformat(seen["since"]) < datetime.now(UTC)
    answers.put(Retryable("the broker does not answer"))
    again = wait_for(reports, lambda call: call is not None and call["error"])
    assert again == {**seen, "error": "the broker does not answer"}
    running.letters.fail = lambda: None
    answers.put(None)
    wait_for(reports, lambda call: call is None)
    running.stop()
    time.sleep(0.1)
    assert reports.report().dead_letter_call is None


def wait_for(reports, holds):
    until = time.monotonic() + 10
    while not holds(call := reports.report().to_dict()["dead_letter_call"]):
        assert time.monotonic() < until, call
        time.sleep(0.01)
    return call


@pytest.mark.parametrize("kind", ["bad_route", "bad_decode", "tombstone", "heartbeat"])
@pytest.mark.parametrize("once", [True, False])
def test_lanes_pass_records_without_changes_for_them(kind, once):
    """Also if the table has had no change since the start, so that its columns are unknown."""
    world = ReplicatedTuples([make_change(i, "c", i) for i in range(6)])
    world.start().once()
    rows = dict(world.targets["a.items"].rows)
    running = world.start()
    skip = running.sinks["a"].skip

    def check(lane, state):
        is_rejected = kind.startswith("bad")
        assert all((f"t-0-{i}", "") in world.letters for i in range(6, state.position[T0])) or not is_rejected
        skip(lane, state)

    running.sinks["a"].skip = check
    records = [TupleRecord("t", 0, i, kind=kind, key=i) for i in range(6, 11)]
    if once:
        running.source.feed(*records)
        assert running.once() is ExitCode.OK
    else:
        running.in_background()
        running.source.feed(*records)
        await_condition(lambda: all(world.targets[lane].state.position.get(T0) == 11 for lane in ("a.items", "b.items")))
        written = running.machine.calls.count("a.skip")
        time.sleep(0.2)
        assert running.machine.calls.count("a.skip") == written <= 5, "an idle lane is left alone"
        assert running.stop() is ExitCode.OK
    report = {lane.lane.id: lane.applied for lane in running.lanes.list_runs()}
    assert report["a.items"][T0] == report["b.items"][T0] == 11 and world.targets["a.items"].rows == rows
    # Nothing is read again, and nothing is missed when the records are gone.
    again = world.start()
    again.source.lost = lambda position: {T0: "begins at 11"} if position.get(T0, 99) < 11 else {}
    again.source.feed(make_change(11, "c", 11))
    assert again.once() is ExitCode.OK and again.supervisor.rejected_count == 0
    assert set(world.targets["a.items"].rows) == {*rows, 11}


def test_store_that_cannot_count_has_an_unknown_count():
    running = ReplicatedTuples(BAD).start()
    running.once()
    counts, count_open = running.shared.rejects.open, running.letters.count_open
    known = counts.counts
    assert known and running.telemetry.open == known

    def refuse():
        raise Retryable("the store does not answer")

    with capture_logs() as logged:
        for count in (refuse, refuse, count_open, refuse):
            running.letters.count_open = count
            counts.recount()
            is_known = count is count_open
            assert counts.counts == (known if is_known else None)
            assert running.telemetry.open == (known if is_known else {})
    sentences = [entry["sentence"] for entry in logged if entry["log_level"] == "warning"]
    assert sentences == ["the store does not answer"] * 2, "one for each time in a row"
    assert running.supervisor._has_new_dead_letters()
