"""The other side of `engines.prefetch.worker_process.DecodeWorker`: `python -m adapters.engines.prefetch.worker_main LINE
RECORDS CHANGES`, open files."""

from __future__ import annotations

import gc
import pickle
import signal
import sys
from functools import lru_cache
from itertools import count
from multiprocessing.connection import Connection

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.table import TableSpec
from replicator.ports.decoder import Decoder

from .shared_memory import SharedMemoryFile

COLLECTED = 64
"""Batches after which circles of objects are looked for."""


@lru_cache(16)
def _unpickle_request(pickled: bytes) -> tuple[Decoder, str, str, TableSpec]:
    """What decoders learn of schemas, they keep."""
    found: tuple[Decoder, str, str, TableSpec] = pickle.loads(pickled)  # noqa: S301  (of the process that began this one)
    return found


def decode_records(pickled: bytes, raw: pa.Table) -> pa.Table | None:
    """The changes of records; None unless all of them are of the table and fingerprint that are said."""
    decoder, table, fingerprint, spec = _unpickle_request(pickled)
    routes = decoder.route(raw)
    mine = pc.and_(pc.equal(routes["table"], table), pc.equal(routes["fingerprint"], fingerprint))
    return decoder.decode(raw, spec) if pc.all(pc.fill_null(mine, False)).as_py() else None


def serve_requests(line: Connection, records: SharedMemoryFile, changes: SharedMemoryFile) -> None:
    """Decode what is asked for until nobody can ask any more, or wants to know. An error is told: the other process meets it
    too, where people are told of it, or can do without."""
    try:
        line.send(0)
        for number in count(1):
            how, size = line.recv()
            line.send(_answer_request(how, records.read(size), changes))
            if number % COLLECTED == 0:
                gc.collect()
    except (EOFError, OSError):
        return


def _answer_request(how: bytes, raw: pa.Table, changes: SharedMemoryFile) -> int | str | None:
    try:
        found = decode_records(how, raw)
        return None if found is None else changes.write(found)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    gc.disable()  # It looks through all records of a batch again and again, and these are in no circle.
    for asked_of_all in (signal.SIGINT, signal.SIGTERM):  # It is for the other one to say when this one ends.
        signal.signal(asked_of_all, signal.SIG_IGN)
    at, *files = map(int, sys.argv[1:])
    serve_requests(Connection(at), *map(SharedMemoryFile, files))
