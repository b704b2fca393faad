"""Change events of Debezium: operations, keys, key changes, images and sequences."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from support.debezium_events import (
    ID,
    TOPIC,
    decode_frame,
    encode_with_schema,
    get_error_code,
    make_change_event,
    make_column,
    make_envelope_schema,
    make_event_key,
    make_payload,
    make_raw_records,
)

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from replicator.domain.change import changes_schema
from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.out_of_range import FIRST_US, LAST_US

PLACEHOLDER = "__debezium_unavailable_value"
NAME = make_column("name", "string")
COLUMNS = [ID, NAME]


def test_frame_has_the_schema_of_the_port() -> None:
    decoder = DebeziumJsonDecoder({})
    frame = make_raw_records(
        [make_change_event(COLUMNS, after={"id": 1, "name": "a"}), make_change_event(COLUMNS, op="t"), b"{"],
        [make_event_key(id=1), None, None],
    )
    route = decoder.route(frame)
    spec = decoder.learn(frame, "public.t", route["fingerprint"][0].as_py())
    changes = decoder.decode(frame, spec)
    assert changes.schema.equals(changes_schema(spec))
    assert decoder.decode(frame.slice(0, 0), spec).schema.equals(changes_schema(spec))
    assert route.slice(0, 0).schema.equals(decoder.route(frame.slice(0, 0)).schema)
    assert changes["_offset"].to_pylist() == [0, 1, 2]


@pytest.mark.parametrize("op", ["x", "", None, "m", "cc"])
def test_unknown_operation_is_rejected(op: str | None) -> None:
    good = make_change_event(COLUMNS, after={"id": 1, "name": "a"})
    first, second = (
        decode_frame(make_raw_records([good, make_change_event(COLUMNS, op=op, after={"id": 1, "name": "a"})]))[:2]
        if op != "m"
        else (decode_frame(make_raw_records([good]))[0], {"_error": "UNKNOWN_OPERATION: "})
    )
    assert (get_error_code(first), get_error_code(second)) == (None, "UNKNOWN_OPERATION")


def test_images_by_operation() -> None:
    row, old = {"id": 1, "name": "new"}, {"id": 1, "name": "old"}
    said: list[dict[str, Any]] = [
        {"op": "c", "after": row}, {"op": "r", "after": row}, {"op": "u", "after": row, "before": old},
        {"op": "d", "before": old}, {"op": "t"}, {"op": "u"}, {"op": "c", "before": old},
    ]  # fmt: skip
    changes = decode_frame(make_raw_records([make_change_event(COLUMNS, **p) for p in said]))
    assert [c["name"] for c in changes[:5]] == ["new", "new", "new", "old", None]
    assert [get_error_code(c) for c in changes] == [None] * 5 + ["MALFORMED"] * 2


def test_delete_without_before_image_takes_the_message_key() -> None:
    values = [
        make_change_event(COLUMNS, op="d"),
        make_change_event(COLUMNS, op="d", before={"id": None, "name": None}),
        make_change_event(COLUMNS, op="d"),
    ]
    keys = [make_event_key(id=7), b'{"id": 8}', b"7"]
    changes = decode_frame(make_raw_records(values, keys))
    assert [c["id"] for c in changes[:2]] == [7, 8]
    assert len(changes) == 2  # The third has a key that names no column, and is rejected where it is routed.


def test_null_and_missing_keys_are_rejected() -> None:
    row = {"id": 1, "name": "a"}
    values = [
        make_change_event(COLUMNS, after=row),
        make_change_event(COLUMNS, after=row),
        make_change_event(COLUMNS, after={"id": None, "name": "a"}),
    ]
    values += [make_change_event(COLUMNS, op="t"), make_change_event(COLUMNS, after={"name": "a"})]
    changes = decode_frame(
        make_raw_records(values, [make_event_key(id=1), None, make_event_key(id=None), None, make_event_key(id=1)])
    )
    assert [get_error_code(c) for c in changes] == [None, "NULL_KEY", "NULL_KEY", None, "NULL_KEY"]


def test_table_without_key_accepts_records_without_key() -> None:
    changes = decode_frame(make_raw_records([make_change_event(COLUMNS, after={"id": None, "name": "a"})], [None]))
    assert (changes[0]["_error"], "_moved_from" in changes[0]) == (None, False)


def test_configured_keys_replace_the_message_key() -> None:
    frame = make_raw_records(
        [
            make_change_event(COLUMNS, after={"id": 1, "name": "a"}),
            make_change_event(COLUMNS, after={"id": 2, "name": None}),
        ],
        [None, b"?"],
    )
    changes = decode_frame(frame, {"keys": {"public.*": ["name"]}})
    assert [get_error_code(c) for c in changes] == [None, "NULL_KEY"]


def test_keys_keep_the_order_of_the_message_key() -> None:
    columns = [ID, make_column("line", "int32"), NAME]
    both = make_event_key([make_column("line", "int32"), ID], line=1, id=1)
    frame = make_raw_records([make_change_event(columns, after={"id": 1, "line": 1, "name": "a"})], [both])
    decoder = DebeziumJsonDecoder({})
    assert decoder.learn(frame, "public.t", "x").keys == ("line", "id")


def test_key_that_is_no_column_is_reported() -> None:
    frame = make_raw_records(
        [make_change_event(COLUMNS, after={"id": 1, "name": "a"})],
        [make_event_key([ID, make_column("shard", "string")], id=1, shard="s")],
    )
    with pytest.raises(ConfigProblem, match="'shard', which is no column"):
        DebeziumJsonDecoder({}).learn(frame, "public.t", "x")


@pytest.mark.parametrize("bare", [True, False])
def test_both_parts_of_a_key_change_have_the_other_key(bare: bool) -> None:
    def header(value: int) -> bytes:
        return json.dumps({"id": value}).encode() if bare else make_event_key(id=value)

    row = {"id": 2, "name": "a"}
    values = [
        make_change_event(COLUMNS, op="d", before={"id": 1, "name": "a"}),
        make_change_event(COLUMNS, after=row),
        make_change_event(COLUMNS, after=row),
    ]
    headers = {0: {"other": b"x", "__debezium.newkey": header(2)}, 1: {"__debezium.oldkey": header(1)}}
    old, new, plain = decode_frame(make_raw_records(values, headers=headers))
    assert (old["_moved_to"], old["_moved_from"]) == (True, None)
    assert (new["_moved_to"], new["_moved_from"]) == (None, {"id": 1})
    assert (plain["_moved_to"], plain["_moved_from"]) == (None, None)


NOT_NULL, STATUS = make_column("n", "int32", optional=False), make_column("status", "string", optional=False, default="new")
KIND = make_column("kind", "string", "io.debezium.data.Enum", optional=False)
PRICE, QUOTED = make_column("price", "string", optional=False), make_column('a "b"', "int32", optional=False)
ALL = {"name": None, "n": 0, "status": "new", "kind": "", "price": "0.00"}


@pytest.mark.parametrize(
    ("changed", "connector", "counts"),
    [({}, "postgresql", False), ({"status": "old"}, "postgresql", False), ({"kind": "a"}, "postgresql", False),
     ({"n": 1}, "postgresql", True), ({"price": "0.10"}, "postgresql", True),
     ({"name": ""}, "postgresql", True), ({}, "oracle", True)],
)  # fmt: skip
def test_image_with_values_that_no_connector_fills_in_is_whole(changed: Any, connector: str, counts: bool) -> None:
    """If PostgreSQL's log has only the key, the connector fills in NULL, the default, or 0 and an empty text."""
    columns = [ID, NAME, NOT_NULL, STATUS, KIND, PRICE]
    source = {"connector": connector}
    gone = make_change_event(columns, op="d", before={"id": 1, **ALL, **changed}, source=source)
    other = make_change_event(columns, op="d", before={"id": 3, **ALL, **changed}, source=source)
    moved, plain = decode_frame(make_raw_records([gone, other], headers={0: {"__debezium.newkey": make_event_key(id=2)}}))
    assert moved["_moved_to"] and moved["_unsent"] == (None if counts else ["name", "n", "status", "kind", "price"])
    assert plain["_unsent"] is None


@pytest.mark.parametrize(("value", "counts"), [(0, False), (1, True)])
def test_image_is_whole_whatever_its_column_names(value: int, counts: bool) -> None:
    gone = make_change_event([ID, QUOTED], op="d", before={"id": 1, 'a "b"': value})
    (change,) = decode_frame(make_raw_records([gone], headers={0: {"__debezium.newkey": make_event_key(id=2)}}))
    assert change["_unsent"] == (None if counts else ['a "b"'])


@pytest.mark.parametrize(
    ("changed", "shown"),
    [({}, None), ({"status": "old"}, "old"), ({"kind": "a"}, "new"), ({"n": 1}, "new"), ({"name": ""}, "new")],
)
def test_filled_in_image_has_the_key_only(changed: Any, shown: str | None) -> None:
    """What may be whole or not stays, as values of columns that were not sent: of columns with a default, or of types of
    their own, any value that the connector does not fill in."""
    gone = make_change_event([ID, NAME, NOT_NULL, STATUS, KIND, PRICE], op="d", before={"id": 1, **ALL, **changed})
    (moved,) = decode_frame(make_raw_records([gone], headers={0: {"__debezium.newkey": make_event_key(id=2)}}))
    assert (moved["id"], moved["status"]) == (1, shown)


NAMES = ["name", "n"]


@pytest.mark.parametrize(
    ("image", "connector", "identity", "unsent", "shown"),
    [({"name": "b", "n": 0}, "postgresql", None, NAMES, "b"), ({"name": "", "n": 0}, "postgresql", None, NAMES, None),
     ({"name": None, "n": None}, "postgresql", None, None, None), ({"name": "b", "n": 0}, "postgresql", "full", None, "b"),
     ({"name": "b", "n": 0}, "postgresql", "default", NAMES, None), ({"name": "", "n": 0}, "postgresql", "full", None, ""),
     ({"name": "b", "n": 0}, "postgresql", {"public.*": "full"}, None, "b"),
     ({"name": "b", "n": 0}, "postgresql", {"public.x": "full"}, NAMES, "b"),
     ({"name": "b", "n": 0}, "mysql", None, None, "b"), ({"name": "", "n": 0}, "db2", None, None, ""),
     ({"name": "b", "n": 0}, "oracle", "default", None, "b")],
)  # fmt: skip
def test_image_without_schema_is_whole_by_its_values_or_the_option(
    image: Any, connector: str, identity: Any, unsent: list[str] | None, shown: str | None
) -> None:
    options = {"schema": {"public.t": {"id": "int64", "name": "string", "n": "int64"}}, "keys": {"public.t": ["id"]}}
    gone = make_payload("d", before={"id": 1, **image}, source={"connector": connector, "file": "f", "pos": 1})
    headers = {0: {"__debezium.newkey": b'{"id":2}'}}
    (change,) = decode_frame(
        make_raw_records([json.dumps(gone).encode()], headers=headers), options | {"replica_identity": identity}
    )
    assert (change["id"], change["_unsent"], change["name"]) == (1, unsent, shown)


@pytest.mark.parametrize("value", [b"1e999", b"[1e999]", b"9" * 5000, b'"\xff"'])
def test_unreadable_value_in_a_doubtful_image_affects_no_other_record(value: bytes) -> None:
    """The parser does not look into values before their columns do."""
    options = {"schema": {"public.t": {"id": "int64", "name": "string"}}, "keys": {"public.t": ["id"]}}
    gone = make_payload("d", before={"id": 1, "name": "?"}, source={"connector": "postgresql", "lsn": 1})
    record = json.dumps(gone).encode().replace(b'"?"', value)
    headers = {0: {"__debezium.newkey": b'{"id":2}'}}
    bad, good = decode_frame(make_raw_records([record, json.dumps(gone).encode()], headers=headers), options)
    assert bad["id"] == 1 and (bad["_error"] or bad["_unsent"])
    assert (good["_error"], good["name"]) == (None, "?")


@pytest.mark.parametrize("header", [b"", b"?", b"{}", b'{"id":null}', b'{"id":"x"}', b'{"id":99999999999999999999}'])
def test_unreadable_old_key_rejects_the_create(header: bytes) -> None:
    good = make_change_event(COLUMNS, after={"id": 1, "name": "a"})
    bad, neighbour = decode_frame(make_raw_records([good, good], headers={0: {"__debezium.oldkey": header}}))
    assert get_error_code(bad) in ("MALFORMED", "OUT_OF_RANGE")
    assert neighbour["_error"] is None


def test_old_key_with_a_row_without_key_columns_rejects_the_create() -> None:
    values = [make_change_event(COLUMNS, after={"id": 1, "name": "a"}), make_change_event([NAME], after={"name": "b"})]
    good, bad = decode_frame(make_raw_records(values, headers={1: {"__debezium.oldkey": b'{"id":1}'}}))
    assert good["_error"] is None and get_error_code(bad) is not None and bad["_moved_from"] == {"id": None}


@pytest.mark.parametrize(
    ("header", "old"),
    [(b'{"id":3}', "3.00"), (b'{"id":-1.5}', "-1.50"), (b'{"id":1E+2}', "100.00"), (b'{"id":"ASw="}', "3.00"),
     (b'{"id":18446744073709551615}', "18446744073709551615.00"), (b'{"id":0.001}', None), (b'{"id":null}', None)],
)  # fmt: skip
def test_old_key_with_decimals_as_numbers(header: bytes, old: str | None) -> None:
    """Messages have base64; headers have the form of Connect's default header converter."""
    parameters = {"scale": "2", "connect.decimal.precision": "22"}
    decimal = make_column("id", "bytes", "org.apache.kafka.connect.data.Decimal", optional=False, parameters=parameters)
    value = make_change_event([decimal, NAME], after={"id": "AZA=", "name": "a"})
    found, neighbour = decode_frame(
        make_raw_records(
            [value, value], [make_event_key([decimal], id="AZA=")] * 2, headers={0: {"__debezium.oldkey": header}}
        )
    )
    assert (found["_error"] is None) == (old is not None) and neighbour["_error"] is None
    assert old is None or str(found["_moved_from"]["id"]) == old


UNSENT_FORMS = [
    (NAME, PLACEHOLDER),
    (make_column("name", "string", "io.debezium.data.Json"), PLACEHOLDER),
    (make_column("name", "string"), "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
    (make_column("name", "string"), PLACEHOLDER.encode().hex()),
    (make_column("name", "string"), json.dumps({PLACEHOLDER: PLACEHOLDER}, separators=(",", ":"))),
    (make_column("name", "bytes"), "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
    (make_column("name", "array", items={"type": "string"}), [PLACEHOLDER]),
    (make_column("name", "array", items={"type": "string"}), ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
    (make_column("name", "array", items={"type": "bytes"}), ["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]),
    (make_column("name", "array", items={"type": "int32"}), list(PLACEHOLDER.encode())),
    (make_column("name", "array", items={"type": "int64"}), list(PLACEHOLDER.encode())),
    (make_column("name", "map", keys={"type": "string"}, values={"type": "string"}), {PLACEHOLDER: PLACEHOLDER}),
    (make_column("name", "string", "io.debezium.time.ZonedTimestamp"), PLACEHOLDER),
    (make_column("name", "bytes", "org.apache.kafka.connect.data.Decimal", parameters={"scale": "2"}),
     "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
    (make_column("name", "bytes", "org.apache.kafka.connect.data.Decimal",
            parameters={"scale": "2", "connect.decimal.precision": "76"}), "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="),
    (make_column("name", "struct", "io.debezium.data.VariableScaleDecimal",
            fields=[make_column("scale", "int32"), make_column("value", "bytes")]),
     {"scale": 0, "value": "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="}),
]  # fmt: skip


@pytest.mark.parametrize(("said", "sent"), UNSENT_FORMS)
def test_unavailable_value_placeholder_in_every_form(said: dict[str, Any], sent: Any) -> None:
    columns = [ID, said]
    rows = [{"id": 1, "name": None}, {"id": 2, "name": sent}]
    whole, partial = decode_frame(make_raw_records([make_change_event(columns, op="u", after=row) for row in rows]))
    assert (whole["_unsent"], whole["_error"]) == (None, None)
    assert (partial["_unsent"], partial["_error"], partial["name"]) == (["name"], None, None)


@pytest.mark.parametrize("given", ["hex:ff00", ["n/a", "hex:ff00"]])
def test_unavailable_value_placeholder_can_be_configured(given: Any) -> None:
    columns = [ID, make_column("b", "bytes"), make_column("i", "array", items={"type": "int16"})]
    (change,) = decode_frame(
        make_raw_records([make_change_event(columns, op="u", after={"id": 1, "b": "/wA=", "i": [-1, 0]})]),
        {"unavailable_value": given},
    )
    assert change["_unsent"] == ["b", "i"]


def test_column_missing_from_an_update_is_unchanged() -> None:
    rows = [{"id": 1}, {"id": 1, "name": "a"}]
    updates = decode_frame(make_raw_records([make_change_event(COLUMNS, op="u", after=row) for row in rows]))
    assert [c["_unsent"] for c in updates] == [["name"], None]
    assert [
        c["_unsent"] for c in decode_frame(make_raw_records([make_change_event(COLUMNS, after=row) for row in rows]))
    ] == [None, None]


def sequences(*sources: dict[str, Any], options: Any = None, keyed: bool = True, **more: Any) -> list[Any]:
    """`_seq_1..3` of updates with these source blocks, or the reason code."""
    values = [make_change_event(COLUMNS, op="u", after={"id": 1, "name": "a"}, source=s, **more) for s in sources]
    changes = decode_frame(make_raw_records(values, None if keyed else [None] * len(values)), options)
    return [get_error_code(c) or (c["_seq_1"], c["_seq_2"], c["_seq_3"]) for c in changes]


def test_postgres_is_ordered_by_commit_and_position() -> None:
    found = sequences(
        {"sequence": '["90","100"]', "lsn": 100}, {"sequence": '[null,"100"]', "lsn": 100}, {"sequence": None, "lsn": 100},
        {"sequence": '["90",null]', "lsn": 100}, {"sequence": '["90", "100"]', "lsn": None},
    )  # fmt: skip
    assert found == [(90, 100, 0), (100, 100, 0), (100, 100, 0), (90, 100, 0), (90, 100, 0)]


def test_postgres_ties_are_distinguished() -> None:
    source = {"sequence": '["90","100"]', "lsn": 100}
    assert sequences(source, source, keyed=False) == [(90, 100, 0), (90, 100, 1)]
    for total in (5, "5"):
        assert sequences(source, transaction={"id": "7:100", "total_order": total}, keyed=False) == [(90, 100, 5)]


@pytest.mark.parametrize("total", ["five", "²", "9" * 19])
def test_order_in_the_transaction_that_is_no_number_is_rejected(total: str) -> None:
    source = {"sequence": '["90","100"]', "lsn": 100}
    assert sequences(source, transaction={"id": "7:100", "total_order": total}, keyed=False) == ["NO_SEQUENCE"]


def test_repeated_change_keeps_its_sequence_after_a_connector_restart() -> None:
    source = {"sequence": '["90","100"]', "lsn": 100}
    assert sequences(source, transaction={"id": "7:100", "total_order": 5}) == [(90, 100, 0)]
    assert sequences(source, transaction={"id": "7:100", "total_order": 1}) == [(90, 100, 0)]


@pytest.mark.parametrize("source", [
    {"sequence": None, "lsn": None}, {"sequence": "[]", "lsn": 5}, {"sequence": '["x","1"]', "lsn": 5}, {"lsn": 2**63},
    {"lsn": -1, "sequence": None}, {"lsn": 2**57, "sequence": None}, {"sequence": f'["{2**57}","1"]'},
    {"connector": "oracle"}, {"connector": None}, {"connector": "mysql", "file": "nonumber", "pos": 4},
    {"connector": "mysql", "file": "b.000001", "pos": None}, {"connector": "mysql", "file": None, "pos": 1},
])  # fmt: skip
def test_record_without_log_position_is_rejected(source: dict[str, Any]) -> None:
    assert sequences({}, source, {})[1:2] == ["NO_SEQUENCE"]
    assert sequences({}, source, {})[::2] == [(999, 1000, 0)] * 2


def test_record_without_source_block_is_rejected() -> None:
    good, bad = make_change_event(COLUMNS, after={"id": 1, "name": "a"}), make_payload(after={"id": 1, "name": "a"})
    del bad["source"]
    decoder = DebeziumJsonDecoder({})
    frame = make_raw_records([good, encode_with_schema(make_envelope_schema(COLUMNS), bad)])
    spec = decoder.learn(frame, "public.t", "x")
    assert get_error_code(decoder.decode(frame, spec).to_pylist()[1]) == "NO_SEQUENCE"
    assert decoder.route(frame)["error"].to_pylist() == [None, "MALFORMED: its source block names no table"]


def test_mysql_is_ordered_by_file_number() -> None:
    def make_source(file: str, pos: int, row: int | None = 0) -> dict[str, Any]:
        return {"connector": "mysql", "db": "public", "schema": None, "file": file, "pos": pos, "row": row}

    found = sequences(
        make_source("bin.999999", 900),
        make_source("bin.1000000", 4),
        make_source("x.y.000002", 4, 3),
        make_source("b.1", 1, None),
    )
    assert found == [(999999, 900, 0), (1000000, 4, 0), (2, 4, 3), (1, 1, 0)]


def test_mariadb_changes_of_a_transaction_are_ordered_by_count() -> None:
    """They share a position. Without counts they have the order of the stream."""
    place = {"connector": "mariadb", "db": "public", "schema": None, "file": "b.000001", "pos": 6260, "row": 0}
    counts = [{"id": "0-1-19", "total_order": total} for total in (2, 4, "5")]
    row = {"id": 1, "name": "a"}
    values = [make_change_event(COLUMNS, after=row, op="r", source=place)]
    values += [
        make_change_event(COLUMNS, after=row, source=place, transaction=told) for told in (*counts, None, {"id": "0-1-20"})
    ]
    found = [(c["_seq_1"], c["_seq_2"], c["_seq_3"]) for c in decode_frame(make_raw_records(values))]
    assert found == [(1, 6260, third) for third in (0, 2, 4, 5, 4, 5)]


def test_epoch_is_in_the_top_bits() -> None:
    assert sequences({}, options={"epoch": 3}) == [(999 + (3 << 56), 1000, 0)]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({"ts_us": FIRST_US}, FIRST_US), ({"ts_us": FIRST_US - 1}, None), ({"ts_us": LAST_US}, LAST_US),
        ({"ts_us": LAST_US + 1}, None), ({"ts_us": 2**62}, None), ({"ts_us": -(2**62)}, None), ({"ts_us": 2**80}, None),
        ({"ts_us": None, "ts_ms": 2**62}, None), ({"ts_us": None, "ts_ms": -(10**14)}, None),
        ({"ts_us": None, "ts_ms": None, "ts_ns": -(2**80)}, None),
    ],
)  # fmt: skip
def test_event_time_out_of_range_is_null(sent: dict[str, Any], kept: int | None) -> None:
    columns = [ID, make_column("name", "string")]
    frame = make_raw_records(
        [make_change_event(columns, after={"id": 1, "name": "a"}, source=s) for s in (sent, {"ts_us": 5})]
    )
    decoder = DebeziumJsonDecoder({})
    route = decoder.route(frame).to_pylist()[0]
    spec = decoder.learn(frame, route["table"], route["fingerprint"])
    changes, envelope = decoder.decode(frame, spec), decoder.envelope(frame)
    assert changes["_ts"].cast(pa.int64()).to_pylist() == envelope["ts"].cast(pa.int64()).to_pylist() == [kept, 5]
    assert changes["_error"].null_count == envelope["error"].null_count == 2


def test_event_time_and_transaction() -> None:
    values = [
        make_change_event(COLUMNS, after={"id": 1, "name": "a"}, source=s, transaction=t)
        for s, t in [
            ({"ts_us": 5}, None), ({"ts_us": None, "ts_ms": 5}, {"id": "x"}),
            ({"ts_us": None, "ts_ms": None, "ts_ns": 5_000, "txId": None}, {"id": "x"}), ({"ts_us": 2**63}, None),
        ]
    ]  # fmt: skip
    changes = decode_frame(make_raw_records(values))
    assert [c["_ts"] and round(c["_ts"].timestamp() * 1e6) for c in changes] == [5, 5_000, 5, None]
    assert [c["_tx"] for c in changes] == ["7", "7", "x", "7"]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a;drop table t", "../x", "x" * 80, "_unsentimental", "é", "a\nb", "A"])
def test_hostile_column_names(name: str) -> None:
    columns = [ID, make_column(name, "int64", "io.debezium.time.MicroTimestamp"), make_column("a", "string")]
    rows = [{"id": 1, name: 0, "a": PLACEHOLDER}, {"id": 2, name: 2**62, "a": "x"}, {"id": 3, name: "x", "a": None}]
    rows += [{"id": 4, name: None, "a": None}]
    changes = decode_frame(make_raw_records([make_change_event(columns, op="u", after=row) for row in rows]))
    assert [get_error_code(c) for c in changes] == [None, "OUT_OF_RANGE", "MALFORMED", None]
    assert (changes[0][name].year, changes[0]["_unsent"], changes[3][name]) == (1970, ["a"], None)
    (gone,) = decode_frame(make_raw_records([make_change_event(columns, op="d")], [make_event_key(id=5)]))
    assert gone["id"] == 5


@pytest.mark.parametrize("name", ["_op", "_offset", "_seq_1", "_moved_from", "_error"])
def test_reserved_column_names_are_refused(name: str) -> None:
    frame = make_raw_records([make_change_event([ID, make_column(name, "string")], after={"id": 1, name: "a"})])
    with pytest.raises(Fatal, match=name):
        DebeziumJsonDecoder({}).learn(frame, "public.t", "x")


def test_decoder_is_pickled_by_its_options() -> None:
    decoder = DebeziumJsonDecoder({"epoch": 3, "schema": {"public.t": {"id": "int64"}}})
    frame = make_raw_records([make_change_event(COLUMNS, after={"id": 1, "name": "a"})])
    spec = decoder.learn(frame, "public.t", decoder.route(frame)["fingerprint"][0].as_py())
    again = pickle.loads(pickle.dumps(decoder))
    assert again.route(frame).equals(decoder.route(frame))
    assert again.decode(frame, spec).equals(decoder.decode(frame, spec))


@pytest.mark.parametrize(("options", "said"), [
    ({"epoch": 128}, "epoch"), ({"unknown": 1}, "unknown"), ({"tombstones": "s3cret"}, "tombstones"),
    ({"limits": {"depth": 0}}, "limits.depth"), ({"schema": {"t": 5}}, "schema.t"),
])  # fmt: skip
def test_invalid_options_are_reported_without_their_values(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigProblem, match=said) as raised:
        DebeziumJsonDecoder(options)
    assert "s3cret" not in str(raised.value)


def test_batch_of_many_arrays_and_schemas_keeps_its_order() -> None:
    wide = [ID, NAME, make_column("more", "int32")]
    frames = []
    for i in range(30):
        columns = wide if i % 3 == 0 else COLUMNS
        text = make_change_event(
            columns, at=i + 1, after={"id": i, "name": "a", "more": 1} if i % 3 == 0 else {"id": i, "name": "a"}
        )
        frames.append(make_raw_records([text if i % 5 else text + b"\n"], [make_event_key(id=i)]))
    frame = pa.concat_tables(frames)
    decoder = DebeziumJsonDecoder({})
    spec = decoder.learn(frame, "public.t", "x")
    changes = decoder.decode(frame, spec)
    assert changes["_seq_2"].to_pylist() == list(range(1, 31))
    assert changes["_error"].null_count == 30
    assert decoder.route(frame)["table"].to_pylist() == ["public.t"] * 30
    assert decoder.envelope(frame)["seq_2"].to_pylist() == list(range(1, 31))
    assert TOPIC in changes["_topic"].to_pylist()
