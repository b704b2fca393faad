"""One part of a measured replay in a process of its own: `python -m benchmarks.replay_child PART FOLDER [ARGUMENT ...] OUT`.

PART `log EVENTS` writes the event log that is replayed, with the program's own sink, a batch of the default size a commit,
as the daemon does. `duckdb COLUMN POLICY` makes the final table of that log with DuckDB alone, out of its Parquet files: out
of `value` (the records as they came) or of `after` (what the log has of the row already, a tenth of it).
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from replicator import cli  # noqa: F401  (first, as in the program: it sets what Arrow's allocator reads)

# isort: split
import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.dispatch import event_log_sink
from adapters.engines.local import LocalEngine
from replicator.domain.change import RAW
from replicator.domain.event_log import make_event_log_plan
from replicator.domain.policy.plan import Counts, Facts
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.components import make_event_log_lane
from replicator.ports.frames import FoldedChanges, Write

from .configs import LOG
from .events import HEADERS, Stream
from .topic import TOPIC

BATCH = 12_000
"""Records of a commit: 32 MiB of them, the default of `record_limits.batch_bytes`."""
AT = TopicPartition(TOPIC, 0)
ROW = {
    "id": "BIGINT", "version": "BIGINT", "name": "VARCHAR", "active": "BOOLEAN", "visits": "INTEGER", "rating": "DOUBLE",
    "updated_at": "VARCHAR", "note": "VARCHAR",
}  # fmt: skip


def make_log(folder: Path, events: int) -> dict[str, Any]:
    """Bytes of the values, and what a target must hold."""
    engine, decoder, stream = LocalEngine(), DebeziumJsonDecoder({}), Stream(events)
    headers = [{"name": name, "value": value} for name, value in HEADERS]
    lane, plan = make_event_log_lane("bench", "bench", LOG), make_event_log_plan()
    sink, coming, at, size = event_log_sink({"path": str(folder)}), stream.events(), 0, 0
    sink.prepare(lane, plan)
    while some := list(islice(coming, BATCH)):
        keys, values, stamps = zip(*some, strict=True)
        n = len(some)
        columns = [[TOPIC] * n, [0] * n, range(at, at + n), stamps, [headers] * n, keys, values]
        arrays = {f.name: pa.array(c).cast(f.type) for f, c in zip(RAW, columns, strict=True)}
        frame = engine.log(pa.table(arrays, RAW), decoder)
        span = Span(Position({AT: at}), Position({AT: at + n}))
        sink.apply([Write(lane, plan, FoldedChanges(frame, Facts(), Counts(), n, n), span)], _no_rejects)
        at, size = at + n, size + sum(map(len, values))
    sink.close()
    return {"bytes": size, "rows": stream.rows, "checksum": stream.checksum}


def _no_rejects(_: Any, rows: Any) -> None:
    raise AssertionError(rows)


def by_duckdb(folder: Path, column: str, policy: str) -> dict[str, Any]:
    """Rows and checksum of the table that DuckDB makes, as Parquet beside the log."""
    out = folder.with_name(f"duckdb-{column}-{policy}.parquet")
    connection = duckdb.connect()
    connection.execute(f"COPY ({_query(folder, column, policy)}) TO '{out}' (FORMAT parquet)")
    current = "WHERE end_seq IS NULL" if policy == "scd2" else ""
    rows, checksum = connection.execute(f"SELECT count(*), sum(version) FROM '{out}' {current}").fetchone() or (0, 0)
    out.unlink()
    return {"rows": rows, "checksum": checksum}


def _query(folder: Path, column: str, policy: str) -> str:
    """The newest row of each key, or each with the place at which the next one begins."""
    files = [uri.removeprefix("file://") for uri in DeltaTable(folder).file_uris()]
    log = f'(SELECT *, "offset" AS place FROM read_parquet({files}))'
    if column == "value":
        kinds = json.dumps({"payload": {"after": ROW, "op": "VARCHAR", "source": {"lsn": "BIGINT"}}})
        parsed = f"SELECT json_transform(decode(value), '{kinds}').payload AS p, place FROM {log}"
        changes = f"SELECT p.after AS r, p.op AS op, p.source.lsn AS lsn, place FROM ({parsed})"
    else:
        changes = f"SELECT json_transform(after, '{json.dumps(ROW)}') AS r, op, seq_2 AS lsn, place FROM {log}"
    if policy == "scd1":
        last = f"SELECT arg_max({{'r': r, 'op': op, 'lsn': lsn}}, place) AS c FROM ({changes}) GROUP BY r.id"
        return f"SELECT unnest(c.r), c.lsn FROM ({last}) WHERE c.op <> 'd'"
    ended = f"SELECT r, op, lsn, lead(lsn) OVER (PARTITION BY r.id ORDER BY place) AS end_seq FROM ({changes})"
    return f"SELECT unnest(r), lsn, end_seq FROM ({ended}) WHERE op <> 'd'"


def main() -> None:
    """Do what the command line says."""
    _, part, folder, *arguments, out = sys.argv
    parts = {"log": lambda events: make_log(Path(folder), int(events)), "duckdb": lambda *a: by_duckdb(Path(folder), *a)}
    Path(out).write_text(json.dumps(parts[part](*arguments)))


if __name__ == "__main__":
    main()
