"""Decoding of the next batches in worker processes.

Decoding holds the GIL for most of its time, and the threads that read, pack and write slow it down. It costs 6
microseconds per record there, and 3.5 in a process that does nothing else (measured). Decoders are pure and picklable
(`ports.decoder`), so worker processes can decode the next batches while this process uses the last one. Frames are
exchanged as Arrow streams in shared memory, and are read without a copy.

A batch is decoded ahead only if it is like the batch that was routed here last. It needs at least `FEW` records, all with
a key and a value, and with the topics, table and schema of that batch. Such a batch does not depend on the state that
routing stores of other records, and does not change it. This process routes and decodes all other batches itself. It also
decodes every batch that a worker cannot decode, to report the error.
"""

from __future__ import annotations

import pickle
import threading
from collections import deque
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from replicator.domain.table import TableSpec
from replicator.ports.decoder import Decoder
from replicator.ports.frames import RecordSlice, RoutedBatch

from .worker_process import DecodeWorker, WorkerEnded, WorkerFailed

log = structlog.get_logger(__name__)

FEW = 1_000
"""Batches with fewer records are not sent to a worker."""
FAILURES = 5
"""Failed batches after which no batch is sent to a worker."""


@dataclass(frozen=True, slots=True)
class DecodeRoute:
    """Table, fingerprint and topics of all records of a batch, and the specification used to decode them, if known."""

    decoder: Decoder
    table: str
    fingerprint: str
    topics: frozenset[str]
    spec: TableSpec | None = None

    def matches(self, decoder: Decoder, run: RecordSlice[pa.Table]) -> bool:
        """True for a slice with the same decoder, table and fingerprint."""
        return self.decoder is decoder and (self.table, self.fingerprint) == (run.table, run.fingerprint)


class DecodePool:
    """Decodes one batch ahead in each of `number` processes, which need about a second to start. Safe for use from
    several threads. Results are requested in the order in which batches were begun."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._turn = threading.RLock()
        self._children: list[DecodeWorker] = []
        self._failed = 0
        self._way: DecodeRoute | None = None
        self._asked: deque[tuple[pa.Table, DecodeRoute, DecodeWorker]] = deque()
        self._done: deque[tuple[pa.Table, DecodeRoute, pa.Table]] = deque(maxlen=number)

    def begin(self, raw: pa.Table, decoder: Decoder) -> None:
        way = self._way
        if (
            self._only_worker
            or way is None
            or way.spec is None
            or way.decoder is not decoder
            or not _is_of_topics(raw, way.topics)
        ):
            return
        with self._turn:
            try:
                child = self._find_idle()
                if child is not None:
                    child.send_request(_pack_route(way), raw)
                    self._asked.append((raw, way, child))
            except WorkerEnded as ended:
                self._stop_worker(ended)

    def rest(self) -> None:
        with self._turn:
            self._asked.clear()
            self._done.clear()
            for child in self._children:
                child.stop()
            for child in self._children:
                child.close()
            self._children = []

    def find_run(self, raw: pa.Table) -> RecordSlice[pa.Table] | None:
        """The slice that the whole frame makes up; None if the frame has to be routed here."""
        with self._turn:
            while any(asked is raw for asked, _, _ in self._asked):
                self._collect_answer()
            way = next((way for done, way, _ in self._done if done is raw), None)
            # Another frame may have gone to another table since then: the stored route is newer than this
            # result.
            return RecordSlice(way.table, way.fingerprint, raw) if way is not None and way == self._way else None

    def find_changes(self, raw: pa.Table, spec: TableSpec) -> pa.Table | None:
        """The changes of a frame that `find_run` returned. None if this process must decode them."""
        with self._turn:
            found = next((one for one in self._done if one[0] is raw), None)
            if found is None:
                return None
            while self._done.popleft() is not found:
                pass
            return found[2] if found[1].spec == spec else None

    def note_route(self, raw: pa.Table, decoder: Decoder, routed: RoutedBatch[pa.Table]) -> None:
        """Store the route of a frame that was routed in this process."""
        with self._turn:
            self._way = None
            if len(routed.slices) == 1 and routed.slices[0].frame is raw:
                (run,) = routed.slices
                self._way = DecodeRoute(decoder, run.table, run.fingerprint, routed.topics[run.table])

    def note_changes(self, run: RecordSlice[pa.Table], decoder: Decoder, spec: TableSpec) -> None:
        """Store the specification with which this process decoded a slice."""
        with self._turn:
            if self._way is not None and self._way.matches(decoder, run):
                self._way = replace(self._way, spec=spec)

    def _find_idle(self) -> DecodeWorker | None:
        """A worker that has started and is idle. If all are busy, wait for the oldest request."""
        if not self._children:
            self._children = [DecodeWorker() for _ in range(self.number)]
        ready = [child for child in self._children if child.is_ready()]
        if ready and len(self._asked) == len(ready):
            self._collect_answer()
        if self._only_worker:
            return None
        busy = [child for _, _, child in self._asked]
        return next((child for child in ready if child not in busy), None)

    def _collect_answer(self) -> None:
        """Wait for the answer to the oldest request."""
        raw, way, child = self._asked.popleft()
        try:
            found = child.read_answer()
        except WorkerFailed as failed:
            self._failed += 1
            log.debug("a batch could not be decoded ahead", error=str(failed))
            if self._only_worker:
                self._stop_worker(failed)
            return
        except WorkerEnded as ended:
            self._stop_worker(ended)
            return
        if found is not None:
            self._done.append((raw, way, found))

    @property
    def _only_worker(self) -> bool:
        return self._failed >= FAILURES

    def _stop_worker(self, ended: WorkerEnded | WorkerFailed) -> None:
        self._failed = FAILURES
        self.rest()
        log.warning("decoding in worker processes has failed; this process continues alone", error=str(ended))


def _pack_route(way: DecodeRoute) -> bytes:
    try:
        return pickle.dumps((way.decoder, way.table, way.fingerprint, way.spec))
    except Exception as error:  # A third-party decoder that is not picklable, against its port.
        raise WorkerEnded(f"its decoder cannot be sent there: {error}") from error


def _is_of_topics(raw: pa.Table, topics: frozenset[str]) -> bool:
    if raw.num_rows < FEW or raw["key"].null_count or raw["value"].null_count:
        return False
    return topics.issuperset(pc.unique(raw["topic"]).to_pylist())
