"""Batches that other processes decode ahead: the same changes for all input, also after crashes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.engines import decode_pool
from adapters.engines.decode_pool import NUMBER, DecodeWorker
from adapters.engines.decode_worker import GROWTH, SharedMemoryFile
from adapters.engines.local import LocalEngine
from replicator.domain.change import RAW
from replicator.ports.engine import Prefetch
from replicator.testing.debezium import make_raw_frame
from replicator.testing.sink_base import make_history, make_writes
from replicator.testing.source import Statement

pytestmark = pytest.mark.skipif(not NUMBER, reason="needs two processors, and files in memory")


@pytest.fixture
def count_requests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of records in each batch that a worker process was requested to decode. Small batches are sent too,
    and the engine waits for the answer."""
    numbers: list[int] = []
    ask, is_ready = DecodeWorker.send_request, DecodeWorker.is_ready

    def count_request(self: DecodeWorker, how: bytes, raw: pa.Table) -> None:
        numbers.append(raw.num_rows)
        ask(self, how, raw)

    monkeypatch.setattr(DecodeWorker, "send_request", count_request)
    monkeypatch.setattr(
        DecodeWorker, "is_ready", lambda self: self._line.poll(60) and is_ready(self) if not self._is_ready else True
    )
    monkeypatch.setattr(decode_pool, "FEW", 1)
    return numbers


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    made = LocalEngine({"ahead": 2})
    yield made
    made.features.prefetch.stop_workers()


def make_frames(count: int, *more: Statement) -> list[pa.Table]:
    """Frames of 20 changes. `more` are the last statements."""
    history = make_history(*(s for n in range(count) for s in make_writes(*range(20), salt=n)), *more)
    edges = [*range(0, len(history.events), 20), len(history.events)]
    return [make_raw_frame(history, a, b) for a, b in pairwise(edges) if a < b]


def process_batches(engine: LocalEngine, decoder: Any, batches: list[pa.Table]) -> list[tuple[Any, ...]]:
    """The engine's result of each batch. Each is begun before the earlier ones are requested."""
    coming, found = list(batches), []
    prefetch = engine.features.prefetch or Prefetch(0, lambda *_: None, lambda: None)
    for raw in coming[: prefetch.depth]:
        prefetch.begin(raw, decoder)
    for number, raw in enumerate(batches):
        routed = engine.route(raw, decoder)
        for run in routed.slices:
            spec = decoder.learn(run.frame, run.table, run.fingerprint)
            found.append(
                (run.table, run.fingerprint, routed.topics, routed.reject_count, *engine.decode(run, decoder, spec))
            )
        found.append((dict(routed.ignored), routed.rejects.to_pylist(), routed.rejects.schema))
        for later in batches[number + prefetch.depth : number + prefetch.depth + 1]:
            prefetch.begin(later, decoder)
    return found


def assert_same_results(engine: LocalEngine, batches: list[pa.Table], decoder: Any = None, **options: Any) -> None:
    one = process_batches(engine, decoder or DebeziumJsonDecoder(options), batches)
    other = process_batches(LocalEngine(), DebeziumJsonDecoder(options), batches)
    assert len(one) == len(other)
    for mine, alone in zip(one, other, strict=True):
        for a, b in zip(mine, alone, strict=True):
            assert a.equals(b) if isinstance(a, pa.Table) else a == b


def test_uniform_batches_are_decoded_ahead(engine: LocalEngine, count_requests: list[int]) -> None:
    batches = make_frames(8)
    assert_same_results(engine, batches)
    # Before the first batch nothing is known, and those that were begun by then are decoded here.
    assert count_requests == [20] * (len(batches) - engine.features.prefetch.depth)


def test_other_batches_are_decoded_in_the_main_process(engine: LocalEngine, count_requests: list[int]) -> None:
    """Tombstones, malformed records, truncates without a key, other schemas, and empty batches."""
    batches = make_frames(3, Statement("delete", 3), Statement("truncate"), Statement("add"), *make_writes(1, 2, 3, salt=40))
    broken = batches[2].to_pylist()
    broken[4]["value"], broken[9]["value"] = b"{", broken[9]["value"].replace(b'"public"', b'"other"')
    batches = [*batches, pa.Table.from_pylist(broken, RAW), RAW.empty_table(), *batches, *make_frames(4)]
    assert_same_results(engine, batches)
    assert 0 < len(count_requests) < len(batches)


def test_killed_worker_is_not_used_again(
    engine: LocalEngine, count_requests: list[int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    started = subprocess.Popen.__init__
    children: list[subprocess.Popen[bytes]] = []

    def record_exchange(self: Any, *args: Any, **more: Any) -> None:
        children.append(self)
        started(self, *args, **more)

    monkeypatch.setattr(subprocess.Popen, "__init__", record_exchange)
    ask = DecodeWorker.send_request

    def kills(self: DecodeWorker, how: bytes, raw: pa.Table) -> None:
        ask(self, how, raw)
        if len(count_requests) == 3:
            for child in children:
                os.kill(child.pid, signal.SIGKILL)
                child.wait()

    monkeypatch.setattr(DecodeWorker, "send_request", kills)
    assert_same_results(engine, make_frames(12))
    assert len(children) == NUMBER and len(count_requests) <= 4
    assert "".join(capfd.readouterr()).count("continues alone") == 1


class LocalDecoder(DebeziumJsonDecoder):
    """Cannot be unpickled in another process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_in, (os.getpid(),)


def _made_in(place: int) -> LocalDecoder:
    if os.getpid() != place:
        raise LookupError
    return LocalDecoder({})


class Unsendable(DebeziumJsonDecoder):
    """Cannot be pickled, against the contract of its port."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("no")


@pytest.mark.parametrize("kind", [LocalDecoder, Unsendable])
def test_decoder_unknown_to_the_workers_runs_in_the_main_process(
    kind: Any, engine: LocalEngine, count_requests: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert_same_results(engine, make_frames(14), kind({}))
    assert len(count_requests) in (
        range(decode_pool.FAILURES, decode_pool.FAILURES + engine.features.prefetch.depth) if kind is LocalDecoder else [0]
    )
    assert "".join(capfd.readouterr()).count("continues alone") == 1


def test_table_of_a_topic_is_known_to_later_batches(engine: LocalEngine, count_requests: list[int]) -> None:
    """If nulls are deletes, only earlier records of the topic show their table."""
    batches = [_set_topic(raw, topic) for topic in ("t.one", "t.two", "t.one") for raw in make_frames(5)]
    nulls = [
        _set_topic(_set_null_values(raw), topic) for raw, topic in zip(make_frames(4), ("t.one", "t.two") * 2, strict=True)
    ]
    other = _set_table(_set_topic(make_frames(1)[0], "t.one"), "others")
    several = [*batches[:10], nulls[1], *batches[10:], *nulls, *batches[:5], other, batches[0], nulls[0]]
    assert_same_results(engine, several, tombstones="delete")
    assert len(count_requests) > 8


def _set_table(raw: pa.Table, table: str) -> pa.Table:
    named = f'"table":"{table}"'.encode()
    return pa.Table.from_pylist(
        [row | {"value": row["value"].replace(b'"table":"items"', named)} for row in raw.to_pylist()], RAW
    )


def _set_topic(raw: pa.Table, topic: str) -> pa.Table:
    return raw.set_column(0, RAW.field(0), pa.array([topic] * raw.num_rows))


def _set_null_values(raw: pa.Table) -> pa.Table:
    at = RAW.get_field_index("value")
    return raw.set_column(at, RAW.field(at), pa.nulls(raw.num_rows, RAW.field(at).type))


def test_pool_ends_silently(count_requests: list[int], capfd: pytest.CaptureFixture[str]) -> None:
    """Before it has started, with an unread answer, and while it works."""
    batches, decoder = make_frames(6), DebeziumJsonDecoder({})
    for count in (0, 3, 6):
        engine = LocalEngine({"ahead": 2})
        process_batches(engine, decoder, batches[:count])
        for raw in batches[:2]:
            engine.features.prefetch.begin(raw, decoder)
        engine.features.prefetch.stop_workers()
    begun = DecodeWorker()
    begun.stop()
    begun.close()
    assert count_requests and "".join(capfd.readouterr()) == ""


def test_results_of_another_decoder_or_table_are_not_used(engine: LocalEngine, count_requests: list[int]) -> None:
    batches, decoder = make_frames(6), DebeziumJsonDecoder({})
    process_batches(engine, decoder, batches)
    before = len(count_requests)
    engine.features.prefetch.begin(batches[0], DebeziumJsonDecoder({}))
    engine.features.prefetch.begin(_set_null_values(batches[0]), decoder)
    assert len(count_requests) == before
    engine.features.prefetch.begin(batches[0], decoder)
    (run,) = engine.route(batches[0], decoder).slices
    keyless = decoder.learn(run.frame, run.table, run.fingerprint).with_keys(())
    good, _ = engine.decode(run, decoder, keyless)
    assert len(count_requests) == before + 1
    assert good.equals(DebeziumJsonDecoder({}).decode(batches[0], keyless))


def test_unused_results_are_discarded(engine: LocalEngine, count_requests: list[int]) -> None:
    """After an outage, a source reads the same records again as other frames."""
    batches, decoder = make_frames(10), DebeziumJsonDecoder({})
    process_batches(engine, decoder, batches[:4])
    for raw in batches[4:8]:
        engine.features.prefetch.begin(raw, decoder)
    before, again = len(count_requests), [pa.Table.from_pylist(raw.to_pylist(), RAW) for raw in batches[4:]]
    assert_same_results(engine, again, decoder)
    assert len(count_requests) > before


def test_closed_pool_leaves_no_processes_and_files(count_requests: list[int]) -> None:
    engine = LocalEngine({"ahead": 2})
    for _ in range(2):
        assert_same_results(engine, make_frames(4))
        assert list_children() and _list_memory_files()
        engine.features.prefetch.stop_workers()
        assert not list_children() and not _list_memory_files()


def _list_memory_files() -> list[str]:
    """The open in-memory files of this process."""
    found = []
    for place in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(place.readlink()))
    return [name for name in found if name.startswith(("/memfd:records", "/memfd:changes"))]


def list_children() -> list[str]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words, parent = (place / "cmdline").read_bytes(), (place / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if b"engines.decode_worker" in words and int(parent) == os.getpid():
            found.append(place.name)
    return found


def test_worker_ends_with_its_parent() -> None:
    """However the parent ends."""
    program = (
        "import sys, time; from adapters.engines.decode_pool import DecodeWorker; c = DecodeWorker()\n"
        "while not c.is_ready(): time.sleep(0.01)\n"
        "print(c.close.peek()[2][1].pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = Path("/proc", parent.stdout.readline().strip())
        assert child.exists()
        parent.kill()
    deadline = time.monotonic() + 20
    while _is_running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _is_running(child)


def _is_running(place: Path) -> bool:
    try:
        return (place / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_tables_are_unchanged_by_shared_memory() -> None:
    """Larger and smaller ones, slices of others, lists and nulls. A copy stays unchanged when other tables follow."""
    file = os.memfd_create("test")
    here, there = SharedMemoryFile(file), SharedMemoryFile(file)
    small = pa.table({"a": [1, None, 3], "b": [["x"], None, []]})
    large = pa.table({"a": list(range(GROWTH // 4)), "b": [["y", None]] * (GROWTH // 4)})
    kept = there.copy(here.write(small))
    for table in (large, small, large.slice(7, 3), small.slice(0, 0), pa.concat_tables([small, small])):
        assert there.read(here.write(table)).equals(table)
    assert kept.equals(small)
    os.close(file)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValueError, match="has no option 'behind'"):
        LocalEngine({"ahead": 2, "behind": 1})
    assert LocalEngine().features.prefetch is LocalEngine({"ahead": 0}).features.prefetch is None
