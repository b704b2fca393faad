"""The columns that a change changed, according to the record."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from support.debezium_events import make_change_event, make_column

from adapters.decoders.canal_json import CanalJsonDecoder
from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.decoders.maxwell_json import MaxwellJsonDecoder
from adapters.engines.local import LocalEngine
from replicator.domain.change import RAW
from replicator.domain.timeline import build_audit

COLUMNS = (make_column("id", "int32", optional=False), make_column("text", "string"), make_column("note", "string"))
OLD, NEW = {"id": 1, "text": "long", "note": "a"}, {"id": 1, "text": "long", "note": "b"}
UNAVAILABLE = "__debezium_unavailable_value"
KEY = json.dumps({"schema": {"type": "struct", "fields": [COLUMNS[0]], "name": "cdc.public.t.Key"}, "payload": {"id": 1}})
CANAL = {
    "database": "public", "table": "t", "type": "UPDATE", "es": 1_700_000_000_000, "ts": 1_700_000_000_000, "isDdl": False,
    "pkNames": ["id"], "mysqlType": {"id": "int", "text": "text", "note": "text"}, "data": [{**NEW, "id": "1"}],
    "old": [{"note": "a"}],
}  # fmt: skip
MAXWELL = {
    "database": "public", "table": "t", "type": "update", "ts": 1_700_000_000, "xid": 7, "commit": True, "data": NEW,
    "old": {"note": "a"}, "primary_key_columns": ["id"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("decoder", "value", "changed"),
    [
        (DebeziumJsonDecoder, make_change_event(COLUMNS, op="u", before=OLD, after=NEW), ["note"]),
        (DebeziumJsonDecoder, make_change_event(COLUMNS, op="u", before=OLD, after=NEW | {"text": UNAVAILABLE}), ["note"]),
        (DebeziumJsonDecoder, make_change_event(COLUMNS, op="u", before=None, after=NEW), None),
        (CanalJsonDecoder, json.dumps(CANAL), ["note"]),
        (CanalJsonDecoder, json.dumps(CANAL | {"data": [NEW | {"id": "1"}] * 2, "old": [{"note": "a"}] * 2}), None),
        (MaxwellJsonDecoder, json.dumps(MAXWELL), ["note"]),
    ],
)
def test_changed_columns_of_a_record(decoder, value, changed):
    texts = [text.encode() if isinstance(text, str) else text for text in (KEY, value)]
    record = {"topic": "cdc.public.t", "partition": 0, "offset": 0, "timestamp": None, "headers": None}
    raw = pa.Table.from_pylist([record | dict(zip(("key", "value"), texts, strict=True))], RAW)
    engine, by = LocalEngine(), decoder({"schema": {"public.t": {"id": "int64", "text": "string", "note": "string"}}})
    (run,) = engine.route(raw, by).slices
    table = by.learn(run.frame, run.table, run.fingerprint)
    changes, rejects = engine.decode(run, by, table)
    assert rejects.num_rows == 0
    found = build_audit(changes, table, by.envelope(run.frame), run.frame, "text")
    who = found["who"].to_pylist()
    assert who == [None if UNAVAILABLE in texts[1].decode() or len(who) > 1 else "long"] * len(who)
    assert {tuple(told or ()) for told in found["changed"].to_pylist()} == {tuple(changed or ())}
    assert found["changed"].null_count == (found.num_rows if changed is None else 0)
