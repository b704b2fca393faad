"""A redacted record is rejected in every format, and gives no row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from support.masked_records import HMAC, decode_changes, read_all_text

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.decoders.dms_csv import DmsCsvDecoder
from adapters.decoders.rows import RowsDecoder
from replicator.application.quarantine.poison_records import filter_poison_records
from replicator.domain.change import ERROR_HEADER, RAW

KEYLESS = {"schema": {"a.t": {"id": "string", "email": "string"}}, "private": {"a.t": {"email": HMAC}}}
DECODERS = {
    "rows": RowsDecoder({**KEYLESS, "inserts_only": True, "sequence_columns": []}),
    "dms_csv": DmsCsvDecoder({**KEYLESS, "csv": {"inserts_only": True}}),
    "flattened": DebeziumJsonDecoder({**KEYLESS, "flattened": True, "tombstones": "delete"}),
}


@pytest.mark.parametrize("kind", list(DECODERS))
def test_redacted_record_gives_no_row(kind: str) -> None:
    by: Any = DECODERS[kind]
    headers = [{"name": ERROR_HEADER, "value": b"MALFORMED: the line is cut"}]
    place = {"topic": "a.t", "partition": 0, "offset": 1_700_000_000_000 << 21, "timestamp": 5, "headers": headers}
    stored = by.mask_records(pa.Table.from_pylist([place | {"value": b"sentinel", "key": None}], RAW))
    assert b"withheld" in stored["value"][0].as_py()
    for records in (stored, by.mask_records(stored)):
        (row,) = decode_changes(records, by)
        assert (row["_error"] or "").startswith("MALFORMED: ")
        (told,) = by.envelope(records).to_pylist()
        assert told["error"].startswith("MALFORMED: ")
        assert told["table"] == (None if kind == "flattened" else "a.t")  # The topic names it.
        assert (told["op"], told["after"]) == (None, None)


@pytest.mark.parametrize("kind", list(DECODERS))
def test_poison_record_of_table_with_masks_is_redacted(kind: str) -> None:
    by: Any = DECODERS[kind]
    place = {"topic": "a.t", "partition": 0, "timestamp": 5, "headers": [{"name": "by", "value": b"sentinel"}]}
    rows = [place | {"offset": offset, "key": b"sentinel", "value": b"sentinel\xff"} for offset in range(3)]
    records = pa.Table.from_pylist(rows, RAW)
    stored = filter_poison_records(by, [("a.t", 0, 1)]).features.mask_records(records)
    assert stored["value"][1].as_py() == by.mask_records(records)["value"][1].as_py()
    assert b"sentinel" not in read_all_text(stored)
