"""Times outside the range of a target, written to both event logs."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.pg_case import fetch_rows, refuse_any_reject

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.dispatch import event_log_sink
from adapters.engines.local import LocalEngine
from adapters.sources.files.file_reader import RecordColumns, parse_line
from replicator.domain.event_log import make_event_log_plan
from replicator.domain.policy.plan import Counts, Facts
from replicator.domain.position import Position, Span, TopicPartition
from replicator.ports.frames import FoldedChanges, Lane, Write

pytestmark = pytest.mark.postgres

PLACE = TopicPartition("cdc.public.t", 0)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999000, UTC)
RECORD_TIMES = [1_700_000_000_000_000, -1_700_000_000_000_000, 2**62, -(2**62), 253_402_300_799_999, 0]
SOURCE_TIMES = [0, 2**62, -(2**62), 2**80, 253_402_300_799_999_000, None]


def make_line(offset: int) -> bytes:
    source = {"connector": "postgresql", "ts_us": SOURCE_TIMES[offset], "schema": "public", "table": "t", "lsn": 5}
    value = json.dumps({"op": "c", "before": None, "after": {"id": 1}, "source": source})
    known = {"topic": PLACE.topic, "partition": 0, "offset": offset, "key": None, "value": value}
    return json.dumps({**known, "timestamp": RECORD_TIMES[offset]}).encode()


def make_write() -> Write[pa.Table]:
    records = RecordColumns()
    for i in range(len(RECORD_TIMES)):
        records.add(parse_line(make_line(i)))
    raw = pa.Table.from_batches([records.to_batch()])
    rows = LocalEngine().log(raw, DebeziumJsonDecoder({}))
    span = Span(Position({PLACE: 0}), Position({PLACE: rows.num_rows}))
    lane = Lane("raw.shop", "tests", "shop", "", "raw", "shop", "event_log")
    return Write(lane, make_event_log_plan(), FoldedChanges(rows, Facts(), Counts(), rows.num_rows, rows.nbytes), span)


def write_log(**options: Any) -> None:
    with closing(event_log_sink(options)) as sink:
        sink.prepare(make_write().lane, make_event_log_plan())
        assert sink.apply([make_write()], refuse_any_reject)["raw.shop"].counts == Counts(applied=len(RECORD_TIMES))


def test_record_is_stored_without_its_out_of_range_times(postgres_dsn: str, tmp_path: Path) -> None:
    write_log(dsn=postgres_dsn)
    write_log(path=str(tmp_path / "log"))
    start = datetime.fromtimestamp(0, UTC)
    expected = [(0, None, start), (1, None, None), (2, None, None), (3, None, None), (4, LAST, LAST), (5, start, None)]
    found = fetch_rows(postgres_dsn, 'SELECT "offset", "timestamp", ts FROM cdc_raw.cdc_events ORDER BY 1')
    assert found == expected
    read = DeltaTable(str(tmp_path / "log")).to_pyarrow_table(columns=["offset", "timestamp", "ts"]).sort_by("offset")
    assert [tuple(row.values()) for row in read.to_pylist()] == expected
