"""The filter that drops records of erased keys, wherever a record has the key."""

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from support.debezium_events import ID, TOPIC, make_change_event, make_column, make_event_key, make_raw_records

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.decoders.dts_avro import DtsAvroDecoder
from adapters.decoders.rows import RowsDecoder
from replicator.application.quarantine.erasure_filter import ERASED_KIND, filter_erased
from replicator.application.quarantine.poison_records import filter_poison_records
from replicator.domain.change import RAW
from replicator.domain.erasures import Erasure, ErasureHashes

COLUMNS = [ID, make_column("name", "string")]
HASHES = ErasureHashes(b"secret")
ERASED = Erasure(
    "shop", "public.t", ("id",), HASHES.hash_key("shop", "public.t", ("id",), ("1",)), datetime(2026, 1, 1, tzinfo=UTC),
    topics=frozenset({TOPIC}),
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "headers"),
    [
        ({"after": {"id": 1, "name": "a"}}, {}),
        ({"op": "d", "before": {"id": 1, "name": "a"}}, {}),
        ({"op": "u", "before": {"id": 1, "name": "a"}, "after": {"id": 2, "name": "a"}}, {}),
        ({"after": {"id": 2, "name": "a"}}, {"__debezium.oldkey": make_event_key(id=1)}),
    ],
    ids=["row", "image of a delete", "image before an update", "old key of a key change"],
)
def test_record_of_an_erased_key_is_ignored(change, headers):
    others = make_change_event(COLUMNS, after={"id": 3, "name": "b"})
    records = make_raw_records(
        [make_change_event(COLUMNS, **change), others],
        [make_event_key(id=2), make_event_key(id=3)],
        headers={0: headers} if headers else {},
    )
    routed = filter_erased(DebeziumJsonDecoder({}), HASHES, [ERASED]).route(records)
    assert routed["ignored"].to_pylist() == [ERASED_KIND, None]
    assert routed["table"].to_pylist() == [None, "public.t"]


@pytest.mark.parametrize("erased", ["1", "2"])
def test_row_with_an_unknown_operation_is_found_by_its_text(erased):
    """It is a reject without images, and may have no message key."""
    one = replace(
        ERASED, table="people", hash=HASHES.hash_key("shop", "people", ("id",), (erased,)), topics=frozenset({"people"})
    )
    row = pa.Table.from_pylist(
        [{"topic": "people", "partition": 0, "offset": 0, "value": b'{"op": "?", "id": 1, "name": "a"}'}], RAW
    )
    decoder = RowsDecoder({"operation_column": "op", "keys": {"people": ["id"]}})
    found = filter_erased(decoder, HASHES, [one]).find_erased(row)
    assert (None if found is None else found.to_pylist()) == ([True] if erased == "1" else None)


def test_erased_and_poison_records_are_not_printed():
    """Printing would decode the records that the filters hide."""
    printing = DtsAvroDecoder({})
    assert printing.features.print_records is not None
    for filtered in (filter_erased(printing, HASHES, [ERASED]), filter_poison_records(printing, [("t", 0, 1)])):
        assert filtered is not printing and filtered.features.print_records is None
