"""Masked Debezium records: they decode like the original records."""

from __future__ import annotations

import hashlib
import hmac
import json
import pickle

import pyarrow as pa
import pytest
from hypothesis import given, settings
from support.debezium_events import make_change_event, make_column, make_payload

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.engines.local import LocalEngine
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem
from replicator.domain.transform.columns import Mask
from replicator.testing.contract import EXAMPLES
from replicator.testing.debezium import make_raw_frame
from replicator.testing.histories import histories
from replicator.testing.source import VALUE_TYPES

KEY = b"k" * 16
HMAC, CUT, FIXED, NOTHING = Mask("hmac", KEY), Mask("truncate", KEY, 2), Mask("fixed", text="*"), Mask("nothing")
COLUMNS = (
    make_column("id", "int32", optional=False),
    make_column("email", "string"),
    make_column("day", "int32", "io.debezium.time.Date"),
)
KEY_OF_1 = json.dumps(
    {"schema": {"type": "struct", "fields": [COLUMNS[0]], "name": "cdc.public.t.Key"}, "payload": {"id": 1}}
)
ROW = {"id": 1, "email": "a@example.com", "day": 7}


def digest(text):
    return hmac.new(KEY, text.encode(), hashlib.sha256).hexdigest()


def decoder(**masks):
    return DebeziumJsonDecoder({"private": {"public.t": masks, "public.other": {}}})


def raw(value, key=KEY_OF_1, topic="cdc.public.t", headers=None):
    record = {"topic": topic, "partition": 0, "offset": 0, "timestamp": None, "headers": headers}
    texts = (text.encode() if isinstance(text, str) else text for text in (key, value))
    return pa.Table.from_pylist([record | dict(zip(("key", "value"), texts, strict=True))], RAW)


def get_stored_row(found):
    (row,) = found.to_pylist()
    return row


def decode_changes(records, by):
    """Every change, by where it is; columns by their names."""
    engine, rows = LocalEngine(), []
    for run in engine.route(records, by).slices:
        frame, rejects = engine.decode(run, by, by.learn(run.frame, run.table, run.fingerprint))
        rows += frame.to_pylist() + [{n: r[n] for n in ("_topic", "_partition", "_offset")} for r in rejects.to_pylist()]
    return sorted(rows, key=lambda row: (row["_partition"], row["_offset"], str(row.get("_op"))))


@settings(max_examples=EXAMPLES)
@given(histories(keys=("int", "text", "composite"), toast=True, first=tuple(VALUE_TYPES)))
def test_masked_record_decodes_like_the_original(history):
    """Also key changes, values that were not sent, and later columns. Masking it again changes nothing."""
    masks = {"k1": HMAC, "v1": CUT}
    by = DebeziumJsonDecoder({"private": {"public.items": masks}})
    records = make_raw_frame(history)
    veiled = by.mask_records(records)
    again = pickle.loads(pickle.dumps(by))
    assert decode_changes(veiled, again) == decode_changes(records, by)
    assert again.mask_records(veiled).equals(veiled)


def test_every_copy_of_a_value_is_masked():
    value = make_change_event(
        COLUMNS, op="u", before=ROW, after=ROW | {"email": "b@example.com"}, source={"query": "... a@example.com"}
    )
    old = {"name": "__debezium.oldkey", "value": b'{"id":1}'}
    found = get_stored_row(decoder(id=HMAC, email=HMAC).mask_records(raw(value, headers=[old])))
    told = json.loads(found["value"])["payload"]
    assert (told["before"]["email"], told["after"]["email"]) == (digest("a@example.com"), digest("b@example.com"))
    assert told["before"]["id"] == json.loads(found["key"])["payload"]["id"] == digest("1")
    assert json.loads(found["headers"][0]["value"]) == {"id": digest("1")}
    assert b"example" not in found["value"]


def test_each_mask_without_a_schema():
    value = json.dumps(make_payload("c", ROW)).encode()
    found = get_stored_row(decoder(id=HMAC, email=CUT, day=NOTHING).mask_records(raw(value, key='{"id":1}')))
    after = json.loads(found["value"])["after"]
    assert after == {"id": digest("1"), "email": f"a@-{digest('a@example.com')[:16]}", "day": None}
    assert json.loads(found["key"]) == {"id": digest("1")}


@pytest.mark.parametrize(
    "value",
    [
        "a@example.com",
        '{"email": "a@example.com"}',
        '{"after": "{\\"email\\": \\"a@example.com\\"}", "op": "c", "source": {"schema": "public", "table": "t"}}',
        make_change_event(COLUMNS, after=["a@example.com"]),
        make_change_event(COLUMNS, after=ROW)[:-3],
    ],
)
def test_unreadable_records_are_redacted(value):
    found = get_stored_row(decoder(email=HMAC).mask_records(raw(value)))
    assert b"example" not in found["value"]
    assert b"withheld" in found["value"]


def test_value_of_another_type_is_rejected_after_masking_too():
    """A masked value is text. Otherwise the record would be accepted when it is read again."""
    by = decoder(id=HMAC)
    for wrong in ("one", 2**40, 1.5, True):
        records = raw(make_change_event(COLUMNS, after=ROW | {"id": wrong}))
        assert [set(row) for row in decode_changes(by.mask_records(records), by)] == [{"_topic", "_partition", "_offset"}], (
            wrong
        )


def test_records_of_other_tables_are_unchanged():
    by = decoder(email=HMAC)
    broken = raw("a@example.com", topic="cdc.public.other")
    assert by.mask_records(broken).equals(broken)
    assert b"withheld" in get_stored_row(by.mask_records(raw("a@example.com", topic="renamed")))["value"]


def test_key_of_a_tombstone_is_masked():
    assert json.loads(get_stored_row(decoder(id=HMAC).mask_records(raw(None)))["key"])["payload"] == {"id": digest("1")}
    found = get_stored_row(decoder(id=HMAC).mask_records(raw(None, topic="renamed")))
    assert (b"withheld" in found["key"], found["value"]) == (True, None)


@pytest.mark.parametrize(("pattern", "topic"), [("public.*", "cdc.public.t_v2"), ("*.*", "dwh.cdc.v1_t")])
@pytest.mark.parametrize("masks", [{}, {"email": HMAC}])
def test_pattern_that_matches_a_renamed_topic_does_not_unmask_its_records(pattern, topic, masks):
    """Not even the records before the first one that names the table."""
    delete = make_change_event(COLUMNS, op="d", before=ROW)
    for values in ((None, delete[:-3]), (None, delete[:-3], delete)):
        stored = DebeziumJsonDecoder({"private": {"public.t": {"id": HMAC}, pattern: masks}}).mask_records(
            pa.concat_tables([raw(value, key='{"id":1}', topic=topic) for value in values])
        )
        assert [b"withheld" in key for key in stored["key"].to_pylist()[:2]] == [True, True]
        assert b"example" not in stored["value"][1].as_py()


def test_name_of_a_topic_counts_unless_its_records_name_a_table_with_other_masks():
    """Even a configured name may have been given to the topic by a transform."""
    by = DebeziumJsonDecoder({"private": {"public.t": {"id": HMAC}, "public.other": {}}})
    tombstone = raw(None, topic="cdc.public.other")
    assert by.mask_records(tombstone).equals(tombstone)
    by.route(raw(make_change_event(COLUMNS, after=ROW), topic="cdc.public.other"))
    assert b"withheld" in get_stored_row(by.mask_records(tombstone))["key"]


def test_topic_names_a_table_of_a_pattern_once_its_records_name_it():
    """A topic has `_` for a character that topics cannot have."""
    by = DebeziumJsonDecoder({"private": {"public.t": {"id": HMAC}, "public.*": {}}})
    for table in ("orders", "größe"):
        topic = f"cdc.public.{table.replace('ö', '_').replace('ß', '_')}"
        unreadable = pa.concat_tables([raw(None, topic=topic), raw("a@example.com", topic=topic)])
        assert [b"withheld" in key for key in by.mask_records(unreadable)["key"].to_pylist()] == [True, True]
        by.route(raw(make_change_event(COLUMNS, after=ROW, source={"table": table}), topic=topic))
        assert by.mask_records(unreadable).equals(unreadable)


@pytest.mark.parametrize(
    ("masks", "told"),
    [
        ({"id": NOTHING}, "masks a key column so that different keys become equal"),
        ({"emial": HMAC}, "does not have"),
    ],
)
def test_unsuitable_mask_suspends_the_lane(masks, told):
    engine, by = LocalEngine(), decoder(**masks)
    (run,) = engine.route(raw(make_change_event(COLUMNS, after=ROW)), by).slices
    with pytest.raises(ConfigProblem, match=told):
        by.learn(run.frame, run.table, run.fingerprint)


@pytest.mark.parametrize(
    "key", ["4711", '"a@example.com"', "a@example.com", '{"schema": {"type": "string"}, "payload": "a@example.com"}']
)
def test_message_key_that_is_a_plain_value_is_removed(key):
    """Its table has another key, or the record was rejected."""
    by = DebeziumJsonDecoder({"private": {"public.t": {"email": HMAC, "id": HMAC}}, "keys": {"public.t": ["id"]}})
    records = raw(make_change_event(COLUMNS, after=ROW), key=key)
    found = get_stored_row(by.mask_records(records))
    assert (found["key"], b"example" in found["value"]) == (None, False)
    assert decode_changes(by.mask_records(records), by) == decode_changes(records, by)


def test_fixed_text_replaces_a_value_of_any_type():
    by = decoder(day=FIXED)
    (row,) = decode_changes(raw(make_change_event(COLUMNS, after=ROW)), by)
    assert (row["id"], row["day"]) == (1, "*")
    assert decode_changes(by.mask_records(raw(make_change_event(COLUMNS, after=ROW))), by) == [row]


def test_key_change_without_schema_keeps_the_old_key():
    declared = {"id": "int32", "email": "string", "day": "int32"}
    by = DebeziumJsonDecoder({"private": {"public.t": {"id": HMAC}}, "schema": {"public.t": declared}})
    told = [{"name": "__debezium.oldkey", "value": b'{"id":1}'}, {"name": "__debezium.context.x", "value": b"y"}]
    records = raw(json.dumps(make_payload("c", ROW | {"id": 2})).encode(), key='{"id":2}', headers=told)
    veiled = by.mask_records(records)
    old, context, _ = (one["value"] for one in get_stored_row(veiled)["headers"])
    assert (json.loads(old), context) == ({"id": digest("1")}, b"y")
    (change,) = decode_changes(veiled, by)
    assert [change] == decode_changes(records, by)
    assert change["_moved_from"] == {"id": digest("1")}


def test_key_without_schema_is_masked_like_its_value():
    by = decoder(id=HMAC)
    veiled = by.mask_records(raw(make_change_event(COLUMNS, after=ROW), key='{"id":1}'))
    assert json.loads(get_stored_row(veiled)["key"]) == {"id": digest("1")}
    assert by.mask_records(veiled).equals(veiled)


def test_tables_with_one_key_schema_have_their_own_masks():
    private = {"public.t": {"id": HMAC}, "public.other": {"id": NOTHING}}
    records = [
        raw(make_change_event(COLUMNS, after=ROW, source={"table": table}), topic=f"cdc.public.{table}")
        for table in ("t", "other")
    ]
    alone = [DebeziumJsonDecoder({"private": private}).mask_records(record) for record in records]
    assert DebeziumJsonDecoder({"private": private}).mask_records(pa.concat_tables(records)).equals(pa.concat_tables(alone))
