"""Debezium events in Avro are stored as text without private values, and decode to the same changes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from servers.schema_registry import API
from support.avro_of_connect import Avro
from support.masked_records import CUT, HMAC, NOTHING, decode_changes, list_visible_values, read_all_text

from adapters.decoders.debezium_avro import DebeziumAvroDecoder
from adapters.decoders.debezium_json import DebeziumJsonDecoder
from replicator.testing.contract import EXAMPLES
from replicator.testing.debezium import make_raw_frame
from replicator.testing.histories import histories, make_random_history
from replicator.testing.source import VALUE_TYPES

MASKS = {"k1": HMAC, "v1": CUT}


@pytest.fixture(scope="module")
def url(registry: str) -> str:
    return f"{registry}{API}"


def decoder(url: str, masks: Any = MASKS, **more: Any) -> Any:
    return DebeziumAvroDecoder({"registry": {"url": url}, "private": {"public.items": masks}, **more})


def test_stored_record_decodes_as_the_original(url: str) -> None:
    """This includes key changes, unchanged values and added columns. Masking a record again changes nothing."""
    avro = Avro(url)

    @settings(max_examples=EXAMPLES)
    @given(histories(keys=("int", "text", "composite"), toast=True, first=tuple(VALUE_TYPES)))
    def check(history: Any) -> None:
        by, raw = decoder(url), make_raw_frame(history)
        records = avro.frame(raw)
        masked, again = by.mask_records(records), pickle.loads(pickle.dumps(by))
        live = decode_changes(records, by)
        assert decode_changes(masked, again) == live
        assert live == decode_changes(raw, DebeziumJsonDecoder({"private": {"public.items": MASKS}}))
        assert again.mask_records(masked).equals(masked)

    check()


def test_private_values_are_not_stored(url: str) -> None:
    raw = make_raw_frame(make_random_history(3, 40, toast=True, keys=("text",)))
    records, by = Avro(url).frame(raw), decoder(url)
    clear = decode_changes(records, DebeziumAvroDecoder({"registry": {"url": url}}))
    values = {row[name] for row in clear for name in MASKS if isinstance(row.get(name), str) and len(row[name]) > 6}
    assert list_visible_values(values, raw)
    assert list_visible_values(values, by.mask_records(records)) == []


def test_unreadable_records_are_redacted(url: str) -> None:
    records, by = (
        Avro(url).frame(make_raw_frame(make_random_history(1, 3, toast=True, keys=("int",)))),
        decoder(url, {"v1": NOTHING}),
    )
    at = records.column_names.index("value")
    broken = records.set_column(at, records.schema.field("value"), [[b"sentinel"] * len(records)])
    assert b"sentinel" not in read_all_text(by.mask_records(broken))
    others = DebeziumAvroDecoder({"registry": {"url": url}, "private": {"public.items": {}, "public.secret": MASKS}})
    assert others.mask_records(broken).equals(broken)
    assert others.mask_records(records).equals(records)
