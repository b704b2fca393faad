"""Records that kill the program, in processes that really die: the finder rejects exactly these records."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.engines.local import LocalEngine
from replicator.application.quarantine.poison_records import (
    MAIN_READER,
    MAX_CRASHES,
    SPLITS,
    PoisonRecordFinder,
    SuspectedSpan,
    split_span,
)
from replicator.domain.change import RAW
from replicator.domain.errors import DecoderDied
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import Batch

Place = tuple[str, int, int]
TOPICS = (TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0))


class NoDeadLetters:
    """An empty store of dead letters."""

    def list_crashed(self, source: str) -> Sequence[Any]:
        return ()


def make_finder(path: Path) -> PoisonRecordFinder[pa.Table]:
    return PoisonRecordFinder(path, LocalEngine().frames, NoDeadLetters(), "shop", threading.Lock())  # type: ignore[arg-type]


def make_span(start: dict[TopicPartition, int], end: dict[TopicPartition, int]) -> Span:
    return Span(Position(start), Position(end))


def make_batch(span: Span, holes: set[Place] = frozenset()) -> Batch[pa.Table]:
    places = [(*p, o) for p, end in span.end.items() for o in range(span.start[p], end) if (*p, o) not in holes]
    rows = [{"topic": t, "partition": p, "offset": o} for t, p, o in places]
    return Batch(pa.Table.from_pylist(rows, RAW), span, len(rows), 10 * len(rows))


def list_positions(batch: Batch[pa.Table]) -> set[Place]:
    return {(row["topic"], row["partition"], row["offset"]) for row in batch.frame.to_pylist()}


def is_killed(run: Callable[[], None]) -> bool:
    """Whether a child process that runs this is killed."""
    child = os.fork()
    if child == 0:
        try:
            run()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def run_once(path: Path, spans: Sequence[Span], killers: set[Place], by: str, kill: Callable[[], None]) -> None:
    """One start of the program, which reads everything from the beginning."""
    watch = make_finder(path)
    spared = set(watch._notes.poison_records)
    watch.begin_run()
    for span in spans:
        for piece in watch.split_batch(make_batch(span), by, lambda: None):
            with watch.note_decoding(piece.span):
                if list_positions(piece) & killers - spared:
                    kill()
    watch.end_run()


def read_poison_records(path: Path) -> set[Place]:
    return {(t, p, o) for t, p, o in json.loads(path.read_text())["condemned"]}


SPANS = st.lists(st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 90), min_size=1), min_size=1, max_size=3)


def test_poison_records_in_two_partitions_are_both_found(tmp_path):
    """No other record is suspected."""
    path, end = tmp_path / "shop.crashes", dict.fromkeys(TOPICS, 3)
    killers = {(*place, 1) for place in TOPICS}
    deaths = 0
    while is_killed(lambda: run_once(path, [make_span(dict.fromkeys(end, 0), end)], killers, MAIN_READER, kill_self)):
        deaths += 1
        assert deaths <= 30
    assert read_poison_records(path) == killers


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@settings(max_examples=4)
@given(lengths=SPANS, data=st.data())
def test_exactly_the_poison_records_are_found(lengths, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("state") / "shop.crashes"
    position, spans = dict.fromkeys(TOPICS, 0), []
    for length in lengths:
        spans.append(make_span({p: position[p] for p in length}, {p: position[p] + n for p, n in length.items()}))
        position |= spans[-1].end
    everything = sorted(place for span in spans for place in list_positions(make_batch(span)))
    killers = set(data.draw(st.lists(st.sampled_from(everything), max_size=2))) if everything else set()
    deaths = 0
    while is_killed(lambda: run_once(path, spans, killers, MAIN_READER, lambda: os.kill(os.getpid(), signal.SIGKILL))):
        deaths += 1
        assert deaths <= 20
    assert read_poison_records(path) == killers
    # The first death is not noted; then the whole, two cuts, and one record so often as it has to be.
    assert deaths <= 1 + len(killers) * (1 + 2 + MAX_CRASHES)
    assert (deaths == 0) == (not killers)


def test_record_with_too_few_crashes_is_decoded(tmp_path):
    """The program is killed each time that it decodes one record alone, one time fewer than counts."""
    path, spans = tmp_path / "shop.crashes", [make_span({TOPICS[0]: 0}, {TOPICS[0]: 40})]
    victim = {(*TOPICS[0], 17)}
    for _ in range(1 + 1 + 1 + MAX_CRASHES - 1):
        assert is_killed(lambda: run_once(path, spans, victim, MAIN_READER, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    assert json.loads(path.read_text())["decoding"]["span"] == {"start": {"a": {"0": 17}}, "end": {"a": {"0": 18}}}
    assert not is_killed(lambda: run_once(path, spans, set(), MAIN_READER, lambda: None))
    assert read_poison_records(path) == set() and json.loads(path.read_text())["suspect"] is None
    # It begins anew.
    assert is_killed(lambda: run_once(path, spans, victim, MAIN_READER, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    assert read_poison_records(path) == set() and make_finder(path)._notes.suspect is None


def test_crashes_outside_decoding_do_not_count(tmp_path):
    """Between two records, and before the first one, however often."""
    path = tmp_path / "shop.crashes"

    def run() -> None:
        watch = make_finder(path)
        watch.begin_run()
        for piece in watch.split_batch(make_batch(make_span({TOPICS[0]: 0}, {TOPICS[0]: 1})), MAIN_READER, lambda: None):
            with watch.note_decoding(piece.span):
                pass
            os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(3 * MAX_CRASHES):
        assert is_killed(run)
    notes = json.loads(path.read_text())
    assert (notes["decoding"], notes["suspect"], notes["condemned"]) == (None, None, [])


def test_each_reader_has_its_own_suspects(tmp_path):
    """Crashes on the main stream do not split the batches of a catch-up."""
    path, spans = tmp_path / "shop.crashes", [make_span({TOPICS[0]: 0}, {TOPICS[0]: 40})]
    for _ in range(2):
        assert is_killed(
            lambda: run_once(path, spans, {(*TOPICS[0], 17)}, "lake.items", lambda: os.kill(os.getpid(), signal.SIGKILL))
        )
    watch = make_finder(path)
    assert len(list(watch.split_batch(make_batch(spans[0]), MAIN_READER, lambda: None))) == 1
    assert len(list(watch.split_batch(make_batch(spans[0]), "lake.items", lambda: None))) > 10


def test_run_that_ends_leaves_no_notes(tmp_path):
    path = tmp_path / "shop.crashes"
    for _ in range(2):
        watch = make_finder(path)
        watch.begin_run()
        before = path.stat().st_ino
        with watch.note_decoding(make_span({TOPICS[0]: 0}, {TOPICS[0]: 1})):
            assert path.stat().st_ino == before
        watch.end_run()
        assert not json.loads(path.read_text())["running"]


def test_crash_of_a_decode_worker_counts_as_a_crash_of_the_program(tmp_path):
    """The decoder runs in the worker; the program is informed, and ends."""
    path, span = tmp_path / "shop.crashes", make_span({TOPICS[0]: 3}, {TOPICS[0]: 4})

    def run() -> PoisonRecordFinder[pa.Table]:
        watch = make_finder(path)
        watch.begin_run()
        with pytest.raises(DecoderDied), watch.note_decoding(span):
            raise DecoderDied("a worker ended")
        watch.end_run()
        return watch

    for _ in range(MAX_CRASHES + 1):
        run()
    assert make_finder(path)._notes.poison_records == ((*TOPICS[0], 3),)


@pytest.mark.parametrize("written", ["", "{", '{"suspect": {"span": 1}}', "[]"])
def test_unreadable_notes_are_ignored(tmp_path, written):
    path = tmp_path / "shop.crashes"
    path.write_text(written)
    watch = make_finder(path)
    watch.begin_run()
    watch.end_run()
    assert read_poison_records(path) == set()


@given(
    st.dictionaries(st.sampled_from(TOPICS), st.tuples(st.integers(0, 40), st.integers(0, 60)), min_size=1),
    st.dictionaries(st.sampled_from(TOPICS), st.tuples(st.integers(0, 100), st.integers(0, 60)), min_size=1),
)
def test_pieces_of_a_span_cover_it_without_gaps(whole, suspected):
    span = make_span({p: a for p, (a, _) in whole.items()}, {p: a + n for p, (a, n) in whole.items()})
    suspicious = make_span({p: a for p, (a, _) in suspected.items()}, {p: a + n for p, (a, n) in suspected.items()})
    pieces = split_span(span, suspicious)
    together = pieces[0]
    for piece in pieces[1:]:
        assert all(piece.start[p] == together.end.get(p, piece.start[p]) for p in piece.start)
        together = together.then(piece)
    assert together == span
    for piece in pieces:
        for p, end in piece.end.items():
            inside = [
                o for o in range(piece.start[p], end) if p in suspicious.end and suspicious.start[p] <= o < suspicious.end[p]
            ]
            size = suspicious.end[p] - suspicious.start[p] if inside else 0
            assert not inside or (len(inside) == end - piece.start[p] and len(inside) <= -(-size // SPLITS))
    assert sum(len(list_positions(make_batch(piece))) for piece in pieces) == len(list_positions(make_batch(span)))


def test_suspected_span_of_one_record_has_its_position():
    assert SuspectedSpan(make_span({TOPICS[0]: 3}, {TOPICS[0]: 4}), MAIN_READER).record_position == (*TOPICS[0], 3)
    assert SuspectedSpan(make_span({TOPICS[0]: 3}, {TOPICS[0]: 5}), MAIN_READER).record_position is None
    assert (
        SuspectedSpan(make_span({TOPICS[0]: 3, TOPICS[1]: 0}, {TOPICS[0]: 4, TOPICS[1]: 1}), MAIN_READER).record_position
        is None
    )
