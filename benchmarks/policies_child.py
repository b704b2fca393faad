"""One batch into one target in a process of its own: `python -m benchmarks.policies_child CASE TARGET PLACE OUT`.

CASE is a JSON object of `select_applying.Case`. TARGET is `delta-rs` or `postgres`, with `-plain` added for a MERGE
written by hand: it finds the last change of each key, and updates, inserts and deletes, without guard, position or
history; or `postgres-versions`, for a history of changes in order, or `postgres-alone`, for its inserts alone. PLACE is
the lake, or the database.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import psycopg
from deltalake import DeltaTable

from adapters.engines.local import LocalEngine
from adapters.sinks.delta.sink import DeltaRsSink
from adapters.sinks.postgres.sink import PostgresSink
from replicator.ports.frames import Lane, Write

from .applying import Case

SMALL = 10_000
"""Rows of the table that the batch before the measured one goes into."""
LANE = Lane("lake.items", "bench", "shop", "public.items", "lake", "items", "scd1")


def lane(case: Case) -> Lane:
    """The lane under the case's policy."""
    return Lane(**{**{f: getattr(LANE, f) for f in LANE.__dataclass_fields__}, "policy": case.policy})


class ElapsedTime(NamedTuple):
    """Seconds by the clock, and of the processors for this process and its children (a Spark driver's, not a server's)."""

    seconds: float
    cpu: float


class Stopwatch:
    """Runs from its making on."""

    def __init__(self) -> None:
        self._began = time.monotonic(), _read_processor_time()

    def read_elapsed(self) -> ElapsedTime:
        """What has gone by."""
        began, spent = self._began
        return ElapsedTime(time.monotonic() - began, _read_processor_time() - spent)


def _read_processor_time() -> float:
    me = psutil.Process()
    times = [one.cpu_times() for one in (me, *me.children(recursive=True))]
    return float(sum(t.user + t.system for t in times))


def no_rejects(_: Lane, rows: Any) -> None:
    """Nothing is to be rejected."""
    raise AssertionError(rows)


def apply_batch(case: Case, engine: Any, sink: Any, frame: Any) -> ElapsedTime:
    """Seconds for fold and apply."""
    watch = Stopwatch()
    folded = engine.fold(frame, case.plan)
    sink.apply([Write(lane(case), case.plan, folded, case.span)], no_rejects)
    return watch.read_elapsed()


def in_process(case: Case, sink: Any) -> ElapsedTime:
    """Seconds for fold and apply in this process, after as large a batch into a small table: what is loaded once in the life
    of a program that applies many batches, is not the batch's."""
    engine, small = LocalEngine(), replace(case, rows=SMALL)
    first = replace(lane(case), id="lake.first", into="first")
    for which in (first, lane(case)):
        sink.prepare(which, case.plan)
    sink.apply([Write(first, case.plan, engine.fold(small.frame(), case.plan), small.span)], no_rejects)
    took = apply_batch(case, engine, sink, case.frame())
    sink.close()
    return took


def delta_rs(case: Case, place: str) -> ElapsedTime:
    """The program's own, in process."""
    return in_process(case, DeltaRsSink({"path": place}))


def delta_rs_plain(case: Case, place: str) -> ElapsedTime:
    """By hand."""
    changes, table = case.frame(), DeltaTable(f"{place}/items")
    values = {c: f"s.{c}" for c in case.table.column_names}
    watch = Stopwatch()
    merger = table.merge(case.last(changes), "t.id = s.id", source_alias="s", target_alias="t", streamed_exec=False)
    merger = merger.when_matched_delete("s._op = 'd'").when_matched_update(values)
    merger.when_not_matched_insert(values, "s._op <> 'd'").execute()
    return watch.read_elapsed()


def postgres(case: Case, place: str) -> ElapsedTime:
    """The program's own, in process."""
    return in_process(case, PostgresSink({"dsn": place, "schema": "public"}))


def postgres_plain(case: Case, place: str) -> ElapsedTime:
    """By hand."""
    names = case.table.column_names
    sets = ", ".join(f"{n} = s.{n}" for n in names if n != "id")
    # A history's primary key has the sequence, which must not be null.
    insert = f"INSERT ({', '.join(names)}, _cdc_seq_1) VALUES ({', '.join(f's.{n}' for n in names)}, 2)"
    last = "SELECT DISTINCT ON (id) * FROM s ORDER BY id, _offset DESC"
    return _by_hand(
        case,
        place,
        f"MERGE INTO items AS t USING ({last}) AS s ON t.id = s.id WHEN MATCHED AND s._op = 'd' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {sets} WHEN NOT MATCHED AND s._op <> 'd' THEN {insert}",
    )


def postgres_versions(case: Case, place: str) -> ElapsedTime:
    """A history by hand, of changes in order: what is open ends, and each change is a version up to the next."""
    names = ", ".join(case.table.column_names)
    next_one = "lead(_offset + 2) OVER (PARTITION BY id ORDER BY _offset)"
    return _by_hand(
        case,
        place,
        "UPDATE items SET _cdc_end_seq_1 = s.first FROM (SELECT id, min(_offset) + 2 AS first FROM s GROUP BY id) AS s "
        "WHERE items.id = s.id AND _cdc_end_seq_1 IS NULL",
        f"INSERT INTO items ({names}, _cdc_seq_1, _cdc_end_seq_1) SELECT {names}, seq, next FROM "
        f"(SELECT *, _offset + 2 AS seq, {next_one} AS next FROM s) AS s WHERE _op <> 'd'",
    )


def postgres_alone(case: Case, place: str) -> ElapsedTime:
    """What no history can do without: the versions that begin are copied and inserted, without looking for anything."""
    names = ", ".join(case.table.column_names)
    return _by_hand(
        case, place, f"INSERT INTO items ({names}, _cdc_seq_1) SELECT {names}, _offset + 2 FROM s WHERE _op <> 'd'"
    )


def _by_hand(case: Case, place: str, *statements: str) -> ElapsedTime:
    """Seconds for the changes, copied into a table `s`, and these statements, in a session that has done the same with a
    small table."""
    small = replace(case, rows=SMALL)
    with psycopg.connect(place) as connection:
        connection.execute("CREATE TABLE first (LIKE items INCLUDING ALL)")
        connection.execute(f"INSERT INTO first SELECT * FROM items WHERE id < {SMALL}".encode())
        _by_statements(
            connection, small, [s.replace(" items ", " first ").replace(" items.", " first.") for s in statements]
        )
        return _by_statements(connection, case, statements)


def _by_statements(connection: psycopg.Connection, case: Case, statements: Sequence[str]) -> ElapsedTime:
    columns = ("_op", "_offset", *case.table.column_names)
    source = case.frame()
    rows = list(zip(*(source[n].to_pylist() for n in columns), strict=True))
    shape = f"SELECT ''::text AS _op, 0::bigint AS _offset, {', '.join(columns[2:])} FROM items LIMIT 0"
    watch = Stopwatch()
    connection.execute(f"CREATE TEMP TABLE s ON COMMIT DROP AS {shape}".encode())
    with connection.cursor().copy(f"COPY s ({', '.join(columns)}) FROM STDIN".encode()) as copy:
        for row in rows:
            copy.write_row(row)
    connection.execute("ANALYZE s")
    for statement in statements:
        connection.execute(statement.encode())
    connection.commit()
    return watch.read_elapsed()


TARGETS: dict[str, Callable[[Case, str], ElapsedTime]] = {
    "delta-rs": delta_rs,
    "delta-rs-plain": delta_rs_plain,
    "postgres": postgres,
    "postgres-plain": postgres_plain,
    "postgres-versions": postgres_versions,
    "postgres-alone": postgres_alone,
}


def peak() -> int:
    """Highest resident memory of the process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(targets: dict[str, Callable[[Case, str], ElapsedTime]]) -> None:
    """Measure what the command line says."""
    _, text, target, where, out = sys.argv
    took = targets[target](Case(**json.loads(text)), where)
    Path(out).write_text(json.dumps({**took._asdict(), "peak": peak()}))


if __name__ == "__main__":
    main(TARGETS)
