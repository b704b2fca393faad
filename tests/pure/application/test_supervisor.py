"""The whole program in the ordinary case, and the ways in which it ends."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby

import pytest
from structlog.testing import capture_logs
from support.application_world import QUICK, ReplicatedTuples, compute_rows
from support.histories_of_items import make_change, make_key_change, make_tombstone
from support.tuple_engine import TupleDecoder
from support.tuple_ports import Crash, Machine

from replicator.application.lane_runs import LaneStatus
from replicator.application.operations.status import StatusReporter
from replicator.domain.errors import ConfigProblem, ExitCode, Fatal, Fenced, Retryable
from replicator.domain.position import Position, Span
from replicator.ports.frames import Batch
from replicator.ports.source import Pace, SourceFeatures

HISTORY = [
    make_change(0, "c", 1),
    make_change(1, "c", 2),
    make_change(2, "u", 1),
    make_change(3, "d", 2),
    make_tombstone(4, 2),
    make_change(5, "c", 3),
]


def test_every_lane_equals_the_model():
    world = ReplicatedTuples(HISTORY, cuts=(2,))
    running = world.start()
    assert running.once() is ExitCode.OK
    assert world.targets["a.items"].rows == compute_rows(HISTORY)
    assert [r.seq for r in world.targets["b.items"].log] == [1, 2, 3, 4, 6]
    assert list(world.targets["raw.s"].log) == HISTORY
    assert all(t.state.position.to_json() == {"t": {"0": 6}} for t in world.targets.values())
    assert running.telemetry.totals == {"consumed": 6, "ignored.tombstone": 1}
    assert running.telemetry.of_lane["b.items"].total == 5
    assert running.source.closed and all(sink.closed for sink in running.sinks.values())


def test_worker_that_has_not_started_has_not_ended():
    """Its sink belongs to it: nothing else may open it."""
    running = ReplicatedTuples(HISTORY).start()
    worker = running.workers["a"]
    assert not worker.join(0)
    running.once()
    assert worker.join(0)


def test_second_start_applies_nothing_again():
    world = ReplicatedTuples(HISTORY, cuts=(2,))
    world.start().once()
    running = world.start()
    assert running.once() is ExitCode.OK
    assert not any(sink.applies for sink in running.sinks.values())
    assert running.telemetry.totals["consumed"] == 0


def test_counter_of_a_source_without_records_exists():
    """The alert rule for a source that brings nothing needs it."""
    running = ReplicatedTuples([]).start()
    assert running.once() is ExitCode.OK
    assert running.telemetry.totals == {"consumed": 0} and "consumed" in running.telemetry.totals


def test_trailing_tombstone_advances_the_positions():
    world = ReplicatedTuples([make_change(0, "c", 1), make_tombstone(1, 1)], cuts=(1,))
    world.start().once()
    assert {t.state.position.to_json()["t"]["0"] for t in world.targets.values()} == {2}


def test_unknown_exception_of_a_sink_suspends_its_lane():
    world = ReplicatedTuples(HISTORY, cuts=(2,))
    running = world.start()

    def bad(writes):
        raise ValueError("secret")

    running.sinks["a"].before_apply = bad
    assert running.once() is ExitCode.RUNTIME
    lane = running.lanes.find("a.items")
    assert lane.status is LaneStatus.SUSPENDED
    assert "ValueError" in lane.problem.sentence and "secret" not in lane.problem.sentence
    assert len(world.targets["b.items"].log) == 5


def test_failing_lane_among_several_is_found():
    lanes = {"public.items": [("a", "append")], "public.other": [("a", "append")]}
    log = [make_change(0, "c", 1), make_change(0, "c", 1, topic="u", table="public.other")]
    world = ReplicatedTuples(log, lanes=lanes, logs=())
    running = world.start()

    def bad(writes):
        if any(w.lane.id == "a.other" for w in writes):
            raise ConfigProblem("no", next_step="yes")

    running.sinks["a"].before_apply = bad
    assert running.once() is ExitCode.CONFIG
    assert len(world.targets["a.items"].log) == 1
    assert running.lanes.find("a.other").status is LaneStatus.SUSPENDED


def test_table_without_key_suspends_its_scd1_lane_only():
    world = ReplicatedTuples(HISTORY, decoder=TupleDecoder(keyless=["public.items"]))
    running = world.start()
    assert running.once() is ExitCode.CONFIG
    problem = running.lanes.find("a.items").problem
    assert "replicator.yaml:7" in problem.next_step
    assert len(world.targets["b.items"].log) == 5


def test_program_ends_without_running_lanes():
    world = ReplicatedTuples(HISTORY, lanes={"public.items": [("a", "scd1")]}, logs=())
    running = world.start()

    def bad(writes):
        raise Fatal("no")

    running.sinks["a"].before_apply = bad
    assert running.in_background().join() is ExitCode.RUNTIME


def test_fenced_sink_ends_the_program():
    running = ReplicatedTuples(HISTORY).start()

    def bad(writes):
        raise Fenced("another")

    running.sinks["a"].before_apply = bad
    assert running.in_background().join() is ExitCode.FENCED


def test_stop_drains_queued_writes():
    world = ReplicatedTuples(list(HISTORY), cuts=(1,))
    running = world.start()
    entered, release = threading.Event(), threading.Event()

    def slow(writes):
        entered.set()
        assert release.wait(5)

    running.sinks["a"].before_apply = slow
    running.source.on_batch = lambda number: running.shared.stop.set() if number == 6 else None
    running.in_background()
    assert entered.wait(5)
    assert running.shared.stop.wait(5)
    release.set()
    assert running.join() is ExitCode.OK
    assert {t.state.position.to_json()["t"]["0"] for t in world.targets.values()} == {6}


def test_stop_interrupts_a_long_call_of_a_sink():
    """Long before the drain time ends. An interrupted call is repeated."""
    world = ReplicatedTuples(list(HISTORY), options=replace(QUICK, drain=60))
    running = world.start()
    entered, hurried = threading.Event(), threading.Event()

    def wait_for_an_answer(writes):
        if not entered.is_set():
            entered.set()
            assert hurried.wait(60)
            raise Retryable("the answer did not come")

    running.sinks["a"].before_apply, running.sinks["a"].hurry = wait_for_an_answer, hurried.set
    running.in_background()
    assert entered.wait(5) and not hurried.is_set()
    assert running.stop() is ExitCode.OK
    assert len(world.targets["b.items"].log) == 5 and world.targets["a.items"].state is not None


def test_sink_that_never_returns_is_abandoned_after_the_drain_time():
    from dataclasses import replace

    world = ReplicatedTuples(list(HISTORY))
    world.options = replace(world.options, drain=0.2)
    running = world.start()
    tried = threading.Event()

    def away(writes):
        tried.set()
        raise Retryable("away")

    running.sinks["a"].before_apply = away
    running.in_background()
    assert tried.wait(5)
    assert running.stop() is ExitCode.OK
    assert world.targets["a.items"].state is None
    assert len(world.targets["b.items"].log) == 5


def test_retryable_error_of_a_sink_is_repeated_and_reported():
    world = ReplicatedTuples(HISTORY)
    running = world.start()
    failures = [Retryable("away"), Retryable("away")]
    shown = []

    def away(writes):
        shown.append(running.lanes.find("a.items").shown_status)
        if failures:
            raise failures.pop()

    running.sinks["a"].before_apply = away
    assert running.once() is ExitCode.OK
    assert shown[0] is LaneStatus.RUNNING and shown[1:] == [LaneStatus.RETRYING] * (len(shown) - 1)
    assert len(shown) >= 3
    assert running.lanes.find("a.items").shown_status is LaneStatus.RUNNING
    assert world.targets["a.items"].rows == compute_rows(HISTORY)


def test_lost_answer_doubles_nothing():
    world = ReplicatedTuples(HISTORY, cuts=(1,))
    running = world.start()
    lost = [Retryable("lost")] * 3
    done = []

    def after(writes):
        done.append(writes[0].span)
        if lost:
            raise lost.pop()

    running.sinks["b"].after_apply = after
    assert running.once() is ExitCode.OK
    assert [r.seq for r in world.targets["b.items"].log] == [1, 2, 3, 4, 6]
    assert running.telemetry.of_lane["b.items"].total == 5
    assert len({repr(span) for span in done}) == len(done), "what was committed was given to the sink again"


def test_retryable_error_of_the_source_resumes_at_the_current_position():
    world = ReplicatedTuples(HISTORY, cuts=(1,))
    running = world.start()
    failing = {2, 4}

    def away(number):
        if number in failing:
            failing.remove(number)
            raise Retryable("broker away")

    running.source.on_batch = away
    assert running.once() is ExitCode.OK
    assert world.targets["a.items"].rows == compute_rows(HISTORY)
    assert [r.seq for r in world.targets["b.items"].log] == [1, 2, 3, 4, 6]


def test_topic_created_again_while_the_source_is_away_is_data_loss():
    running, failures = ReplicatedTuples(HISTORY, cuts=(1,)).start(), [Retryable("broker away")]

    def away(number):
        if number == 2 and failures:
            running.source.lost = lambda position: dict.fromkeys(position, "Topic t was deleted and created again.")
            raise failures.pop()

    running.source.on_batch = away
    assert running.once() is ExitCode.DATA_LOSS
    assert [error.sentence for error in running.shared.failures] == ["Topic t was deleted and created again."]


def test_outage_of_a_source_is_reported_with_its_start():
    world = ReplicatedTuples(HISTORY, cuts=(1,), options=replace(QUICK, report_every=0))
    running = world.start()
    status = StatusReporter(running.supervisor._pipelines, running.shared)
    seen, failures = [], [Retryable("broker away"), Retryable("still away")]

    def away(number):
        seen.append(status.report().sources[0])
        if len(seen) > 1 and failures:
            raise failures.pop(0)

    running.source.on_batch = away
    before = datetime.now(UTC) - timedelta(seconds=0.1)
    assert running.once() is ExitCode.OK
    assert [error for error, _ in groupby(s.error for s in seen)] == [None, "broker away", "still away", None]
    since = [datetime.fromisoformat(s.away_since) for s in seen if s.error]
    assert before <= min(since) and max(since) - min(since) < timedelta(seconds=0.1), "since the first failure, not the last"
    assert status.report().sources[0].away_since is None


def test_source_with_a_failing_partition_is_reported_while_others_are_read():
    running = ReplicatedTuples(HISTORY, cuts=(1,), options=replace(QUICK, report_every=0)).start()
    status, seen = StatusReporter(running.supervisor._pipelines, running.shared), []

    def committed(position):
        seen.append(running.pipeline.progress.outage)
        raise Retryable("t[1] fails")

    running.source.committed = committed
    with capture_logs() as logged:
        assert running.once() is ExitCode.OK
    assert seen[0] is None and len(seen) > len(HISTORY) and set(seen[1:]) == {running.pipeline.progress.outage}
    assert [entry["sentence"] for entry in logged if entry["log_level"] == "warning"] == ["t[1] fails"]
    report = status.report()
    assert report.sources[0].error == "t[1] fails" and {lane.lag_records for lane in report.lanes} == {0}
    assert running.telemetry.lags[0] > running.telemetry.lags[-1] == 0
    running.source.committed = seen.append
    running.pipeline.report_positions()
    assert status.report().sources[0].away_since is None


def test_source_that_fails_at_the_same_records_has_one_outage():
    """For example while the schema registry is unreachable: each run starts with an empty batch, like that of Kafka."""
    running = ReplicatedTuples(HISTORY).start()
    read, route = running.source.run, running.engine.route
    failures, now = [Retryable("registry away")] * 3, [running.shared.clock()]
    object.__setattr__(running.shared, "clock", lambda: now[0])

    def run(start, consume_batch, stop, *, once):
        consume_batch(Batch((), Span(Position(), Position()), 0, 0))
        read(start, consume_batch, stop, once=once)

    def fail_routing(*args):
        now[0] += 60
        if failures:
            raise failures.pop()
        return route(*args)

    running.source.run, running.engine.route = run, fail_routing
    with capture_logs() as logged:
        assert running.once() is ExitCode.OK
    said = [entry["event"] for entry in logged if entry["event"].startswith("source") and entry["log_level"] != "debug"]
    assert said == ["source away", "source back"]


def test_wait_for_a_source_is_reported_with_reason_and_start():
    world = ReplicatedTuples(HISTORY, cuts=(1,))
    running = world.start()
    after_a_minute = StatusReporter(running.supervisor._pipelines, running.shared, clock=lambda: running.shared.clock() + 60)
    [pipeline], seen, taken = running.supervisor._pipelines, [], []

    def looking(calls, method):
        def look(*given):
            calls.append(after_a_minute.report().sources[0].call)
            return method(*given)

        return look

    source = running.source
    source.on_batch, source.start = looking(seen, source.on_batch), looking(seen, source.start)
    source.end, pipeline.process_batch = looking(seen, source.end), looking(taken, pipeline.process_batch)
    assert running.once() is ExitCode.OK
    assert world.targets["a.items"].rows == compute_rows(HISTORY) and set(taken) == {None}
    assert {call["doing"] for call in seen} == {"reading", "looking for its start", "looking for its end"}
    since = [datetime.fromisoformat(call["since"]) for call in seen]
    assert all(timedelta(seconds=59) < datetime.now(UTC) - one < timedelta(seconds=90) for one in since)
    assert after_a_minute.report().sources[0].call is None
    assert StatusReporter(running.supervisor._pipelines, running.shared).report().sources[0].call is None


def test_program_with_an_unreachable_source_is_alive():
    running = ReplicatedTuples(HISTORY, options=replace(QUICK, report_every=1000)).start()

    def away(*_args, **_more):
        raise Retryable("broker away")

    running.source.run = away
    running.in_background()
    began = running.pipeline.last_beat
    deadline = time.monotonic() + 10
    while running.pipeline.last_beat == began and time.monotonic() < deadline:
        time.sleep(0.001)
    assert running.pipeline.last_beat > began
    assert running.stop() is ExitCode.OK


def test_fatal_error_of_the_source_ends_the_program():
    running = ReplicatedTuples(HISTORY).start()

    def bad(number):
        raise Fatal("broken")

    running.source.on_batch = bad
    assert running.in_background().join() is ExitCode.RUNTIME
    assert running.supervisor.problem.sentence == "broken"


def test_kill_closes_nothing():
    running = ReplicatedTuples(HISTORY).start(Machine(3))
    try:
        running.once()
    except Crash:
        assert not running.source.closed
    else:
        raise AssertionError("the crash got lost")


def test_source_gets_the_lowest_position():
    world = ReplicatedTuples([*HISTORY, *make_key_change(6, 3, 4)])
    running = world.start()
    running.once()
    assert running.source.committed_positions[-1].to_json() == {"t": {"0": 9}}
    assert running.telemetry.lags[-1] == 0


def test_pace_of_an_engine_stream_is_reported():
    running = ReplicatedTuples(HISTORY).start()
    pace = Pace(2.5, 10.0, 20.0, 3)
    running.source.features = SourceFeatures(engine="spark", pace=lambda: pace)
    running.once()
    assert running.telemetry.paces[-1][1:] == ("spark", pace)
    assert StatusReporter(running.supervisor._pipelines, running.shared).report().to_dict()["sources"][0]["pace"] == asdict(
        pace
    )


def test_silent_source_ends_a_run_until_caught_up():
    def refuse(*_: object, **__: object) -> None:
        raise Retryable("the broker does not answer")

    def say_nothing(start, consume_batch, stop, *, once):
        while not stop.wait(0.005):
            consume_batch(Batch((), Span(Position(), Position()), 0, 0))

    for run in (refuse, say_nothing):
        running = ReplicatedTuples(HISTORY).start()
        running.source.run = run
        assert running.supervisor.run(once=True, timeout=0.1) is ExitCode.ENVIRONMENT
        assert "Source s has been silent" in running.supervisor.problem.sentence
        assert "--timeout" in running.supervisor.problem.next_step


@pytest.mark.parametrize("patterns", [{"^shop[.].*": ["shopx.items"]}, {}])
def test_run_without_records_fails_if_a_topic_pattern_matches_nothing(patterns):
    running = ReplicatedTuples([]).start()
    running.source.features = SourceFeatures(unmatched=lambda: patterns)
    assert running.once() is ExitCode.OK
    found = running.supervisor.find_why_nothing_came()
    if not patterns:
        assert found is None
        return
    assert found.exit_code is ExitCode.ENVIRONMENT == 3
    assert "Source s has no topic" in found.sentence and "'^shop[.].*'" in found.sentence and "shopx.items" in found.sentence
    assert "`topics`" in found.next_step


def refuse_for_ever(*_: object) -> None:
    raise Retryable("the server does not answer")


def test_catch_up_that_always_fails_ends_a_run_until_caught_up():
    world = ReplicatedTuples(HISTORY)
    world.start().once()
    world.targets.pop("a.items")
    running = world.start()
    running.source.read = refuse_for_ever
    running.in_background(once=True, timeout=0.1)
    assert running.join() is ExitCode.ENVIRONMENT
    assert running.supervisor.problem.sentence.startswith("Source s has been silent for 0 s: the server does not answer")


@pytest.mark.parametrize("call", ["state", "apply"])
def test_sink_that_always_fails_ends_a_run_until_caught_up(call):
    running = ReplicatedTuples(HISTORY).start()
    setattr(running.sinks["a"], call, refuse_for_ever)
    running.in_background(once=True, timeout=0.1)
    assert running.join() is ExitCode.ENVIRONMENT
    assert running.supervisor.problem.sentence.startswith("Sink a has been silent for 0 s: the server does not answer")
    assert len(running.world.targets["b.items"].log) == 5, "what does answer gets its changes"


def test_long_write_counts_as_progress_although_another_sink_fails():
    running = ReplicatedTuples(HISTORY).start()
    slow, failing, is_written = running.sinks["a"], running.sinks["b"], threading.Event()
    write, write_too = slow.apply, failing.apply

    def apply_slowly(*args):
        time.sleep(0.5)
        is_written.set()
        return write(*args)

    slow.apply = apply_slowly
    failing.apply = lambda *args: write_too(*args) if is_written.is_set() else refuse_for_ever()
    running.in_background(once=True, timeout=0.1)
    assert running.join() is ExitCode.OK
    assert len(running.world.targets["b.items"].log) == 5


def test_program_with_an_unreachable_sink_is_alive():
    world = ReplicatedTuples(HISTORY, cuts=(1,), lanes={"public.items": [("a", "scd1")]}, logs=())
    world.options = replace(QUICK, handover_bytes=1, report_every=1000, drain=0.1)
    running = world.start()
    running.sinks["a"].apply = refuse_for_ever
    running.in_background()
    deadline = time.monotonic() + 10
    while running.workers["a"].queue.has_room() and time.monotonic() < deadline:
        time.sleep(0.001)
    began = time.monotonic()
    while running.pipeline.last_beat <= began + 0.5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert running.pipeline.last_beat > began + 0.5, "it waits for room, which is no reason to restart it"
    running.stop()


def test_slow_source_is_not_silent():
    running = ReplicatedTuples(HISTORY, cuts=(1,)).start()
    read, tries = running.source.run, iter(range(1000))

    def stutter(start, consume_batch, stop, *, once):
        def slowly(batch):
            time.sleep(0.05)
            consume_batch(Batch((), Span(Position(), Position()), 0, 0))
            consume_batch(batch)
            if next(tries) % 2:
                raise Retryable("the broker does not answer")

        read(start, slowly, stop, once=once)

    running.source.run = stutter
    assert running.supervisor.run(once=True, timeout=0.15) is ExitCode.OK
    assert len(running.world.targets["b.items"].log) == 5


def test_lag_counts_the_topics_of_the_lane_only():
    """An event log does not wait for topics whose tables do not write to it."""
    lanes = {"public.items": [("a", "scd1")], "public.other": [("a", "scd1")]}
    log = [*HISTORY, *(make_change(n, "c", n, topic="u", table="public.other") for n in range(26))]
    running = ReplicatedTuples(log, lanes=lanes, event_logs={"public.other": frozenset()}).start()
    assert running.once() is ExitCode.OK
    report = StatusReporter([running.pipeline], running.shared).report()
    assert {lane.id: lane.lag_records for lane in report.lanes} == {"a.items": 0, "a.other": 0, "raw.s": 0}
    assert (report.sources[0].lag_records, running.telemetry.lags[-1]) == (0, 0)


def test_lag_is_unknown_for_sparse_offsets():
    running = ReplicatedTuples(HISTORY).start()
    running.pipeline.progress.is_sparse = True
    assert running.once() is ExitCode.OK
    status = StatusReporter([running.pipeline], running.shared)
    assert {lane.lag_records for lane in status.report().lanes} == {0}
    running.source.feed(make_change(1 << 40, "c", 4))
    running.pipeline.report_positions()
    assert {lane.lag_records for lane in status.report().lanes} == {None}
    assert (status.report().sources[0].lag_records, running.telemetry.lags[-1]) == (None, None)
