"""Messages decoded together give the same changes as messages decoded one by one."""

import json
from random import Random

import pyarrow as pa
import pytest
from support.overrides import override

from adapters.decoders.canal_json import CanalFormat, CanalJsonDecoder
from adapters.decoders.json.schema_frames import is_deep, is_shallow
from adapters.decoders.maxwell_json import MaxwellFormat, MaxwellJsonDecoder
from adapters.decoders.ogg_json import GoldenGateFormat, OggJsonDecoder
from replicator.domain.change import ERROR, RAW
from replicator.testing.contract import EXAMPLES, SEED
from replicator.testing.decoder_fuzz import INPUTS, alter_json

DECLARED = {
    "id": "int64",
    "small": "int16",
    "name": "string",
    "price": "decimal(10,2)",
    "rate": "double",
    "on": "bool",
    "at": "timestamp[us]",
    "zoned": "timestamp[us, UTC]",
    "day": "date32",
    "raw": "binary",
    "more": "string",
    "kind": "string",
    "tags": "string",
}
TYPES = {
    "id": "bigint(20)", "small": "tinyint(4)", "name": "varchar(40)", "price": "decimal(10,2) unsigned", "rate": "double",
    "on": "bit(1)", "at": "datetime(6)", "zoned": "timestamp(6)", "day": "date", "raw": "blob", "more": "json",
    "kind": "enum('a','b','1')", "tags": "set('x','y')",
}  # fmt: skip


def row(rng, **others):
    return {
        "id": rng.randrange(9), "small": rng.choice([1, -5, None]),
        "name": rng.choice(["a", "é☃", "", 'say "hi"\\\n', None]), "price": rng.choice([1.5, 0, "2.25", None]),
        "rate": rng.choice([1.5, 3, "NaN", None]), "on": rng.choice([True, 0, 1]),
        "at": "2024-02-29 23:59:59.123456", "zoned": rng.choice(["2024-02-29 23:59:59", None]), "day": "2024-02-29",
        "raw": rng.choice(["AA==", None]), "more": rng.choice(["{}", None]),
        "kind": rng.choice(["a", "1", "2", "9", None]), "tags": rng.choice(["x,y", "3", "4", None]),
    } | others  # fmt: skip


def odd(rng, image):
    """A row that is not what it should be, in one of many ways."""
    kind = rng.randrange(10)
    if kind < 2:
        image.pop(rng.choice(list(image)))
    elif kind < 4:
        image[rng.choice(list(image))] = rng.choice([None, "x", 2**70, 1.25, [1], {"a": 1}, True, "", "1"])
    return image


def texts_of(image):
    return {name: None if value is None else str(value) for name, value in image.items()}


def canal(rng, n):
    kind = rng.choice(["INSERT", "UPDATE", "DELETE", "update", "TRUNCATE", "QUERY"] + ["UPDATE", "INSERT"] * 5)
    rows = [texts_of(odd(rng, row(rng))) for _ in range(rng.choice([1, 1, 1, 2, 5]))]
    old = [rng.choice([{"name": "o"}, {"id": "77"}, {"id": one.get("id")}, {}]) for one in rows]
    return {
        "data": rng.choice([rows] * 30 + [None, []]), "old": rng.choice([old, None]) if kind == "UPDATE" else None,
        "type": kind, "database": "shop", "table": "items", "pkNames": rng.choice([["id"]] * 20 + [None]),
        "mysqlType": TYPES, "sqlType": {"small": rng.choice([-6, 5]), "kind": 4}, "isDdl": False,
        "es": rng.choice([1_700_000_000_000, None, 2**60]), "id": n,
    }  # fmt: skip


def maxwell(rng, n):
    kind = rng.choice(["insert", "update", "delete", "bootstrap-insert", "table-create", "odd"] + ["update", "insert"] * 5)
    old = (
        {"old": rng.choice([{"id": 77}, {"name": "old"}, {"kind": "old", "price": 1}, {}, None, {"id": None}, [1]])}
        if kind == "update"
        else {}
    )
    return {
        "database": "shop", "table": "items", "type": kind, "ts": rng.choice([1_700_000_000, None, 2**70]),
        "xid": rng.choice([n, None, 2**80]), "data": rng.choice([odd(rng, row(rng))] * 20 + [None]), **old,
    }  # fmt: skip


def ogg(rng, n):
    kind = rng.choice("IUDTX" + "UI" * 5)
    images = {"before": odd(rng, row(rng)), "after": odd(rng, row(rng))}
    images["after"].pop(rng.choice(["name", "raw", "more"]), None)
    for name, lacks in (("before", "I"), ("after", "D")):
        if kind == lacks or rng.randrange(20) == 0:
            images.pop(name)
    pos = rng.choice([f"{n:020}"] * 20 + ["9" * 20, "x", None])
    return {"table": "SHOP.ITEMS", "op_type": kind, "op_ts": "2024-02-29 10:00:00.5", "pos": pos, "xid": "7", **images}


def one_by_one(form):
    return override(form, make_batch_reader=lambda *_: None)()


def never_one_by_one(form):
    def refuse(*_):
        raise AssertionError("these are usual messages, and are to be read together")

    return override(form, make_row_reader=refuse)()


def decoder(kind, form, options):
    return override(kind, FORMAT=form)(options)


KEYED = {"schema": {"*": DECLARED}, "keys": {"*": ["id"]}}
FORMATS = {
    "canal": (CanalJsonDecoder, CanalFormat, {}, canal),
    "canal-declared": (CanalJsonDecoder, CanalFormat, KEYED, canal),
    "canal-keyless": (CanalJsonDecoder, CanalFormat, {"schema": {"*": DECLARED}}, canal),
    "maxwell": (MaxwellJsonDecoder, MaxwellFormat, KEYED | {"epoch": 3}, maxwell),
    "maxwell-keyless": (MaxwellJsonDecoder, MaxwellFormat, {"schema": {"*": DECLARED}}, maxwell),
    "ogg": (OggJsonDecoder, GoldenGateFormat, KEYED | {"epoch": 3}, ogg),
}


@pytest.fixture(params=list(FORMATS))
def kind(request):
    return FORMATS[request.param]


def frame(texts):
    rows = [{"topic": "all", "partition": 0, "offset": n, "timestamp": 1_700_000_000_000 + n} for n in range(len(texts))]
    return pa.Table.from_pylist([r | {"value": v} for r, v in zip(rows, texts, strict=True)], RAW)


def write_message(message, rng):
    separators = (", ", ": ") if rng.randrange(5) == 0 else (",", ":")
    return json.dumps(message, ensure_ascii=rng.random() < 0.2, separators=separators).encode()


def table_of(reader, raw):
    routes = reader.route(raw).to_pylist()
    place, found = next((i, one) for i, one in enumerate(routes) if one["fingerprint"])
    return reader.learn(raw.slice(place, 1), found["table"], found["fingerprint"])


SIZES = (600, 1500) if EXAMPLES > 3 else (60, 240)


@pytest.mark.slow
def test_messages_together_equal_messages_one_by_one(kind):
    decoder_kind, form, options, message = kind
    rng = Random(SEED)
    for _ in range(max(INPUTS // 1000, 3)):
        texts = [write_message(message(rng, n), rng) for n in range(rng.choice([1, 3, *SIZES]))]
        texts = [alter_json(text, rng) if rng.random() < 0.1 else text for text in texts]
        raw = frame([None if rng.random() < 0.01 else text for text in texts])
        together, alone = decoder_kind(options), decoder(decoder_kind, one_by_one(form), options)
        if not any(alone.route(raw)["fingerprint"].to_pylist()):
            continue
        table = table_of(alone, raw)
        assert repr(together.decode(raw, table).to_pylist()) == repr(alone.decode(raw, table).to_pylist())


def one_of(message, n, image):
    """What makes a message of this kind a usual one."""
    op, old = ("insert", "update", "delete")[n % 3], {"name": "o"} if n % 3 == 1 else None
    if message is ogg:
        lacking = {name: value for name, value in image.items() if name != "more"}
        return {"op_type": "IUD"[n % 3], "pos": f"{n:020}", "before": image, "after": lacking}
    if message is maxwell:
        return {"type": op, "data": image, "old": old}
    return {"type": op.upper(), "data": [texts_of(image)], "old": old and [old], "pkNames": ["id"]}


def test_usual_messages_are_decoded_together(kind):
    """Also with escapes, nulls and missing values."""
    decoder_kind, form, options, message = kind
    rng = Random(SEED)
    plain = row(rng, name='é "\\\n', price=2.25, rate=1.5, on=0, small=None, kind="1", tags="3")
    usual = [message(rng, n) | one_of(message, n, plain) for n in range(200)]
    raw = frame([json.dumps(one).encode() for one in usual])
    reader = decoder(decoder_kind, never_one_by_one(form), options)
    changes = reader.decode(raw, table_of(decoder_kind(options), raw))
    assert changes.num_rows == len(usual)
    assert changes[ERROR].null_count == len(usual)
    assert set(changes["name"].to_pylist()) == {'é "\\\n'}


def test_canal_message_with_unusual_type_codes_is_decoded_alone():
    """Its codes say how labels are sent. They are looked at while a batch is read, where nothing may be raised."""
    rng = Random(SEED)
    usual = [canal(rng, n) | one_of(canal, n, row(rng)) for n in range(9)]
    texts = [json.dumps(one | ({"sqlType": {"kind": []}} if n == 4 else {})).encode() for n, one in enumerate(usual)]
    reader, alone = CanalJsonDecoder({}), decoder(CanalJsonDecoder, one_by_one(CanalFormat), {})
    table = table_of(alone, frame(texts))
    found = reader.decode(frame(texts), table).to_pylist()
    assert repr(found) == repr(alone.decode(frame(texts), table).to_pylist())


def make_nested_value(rng, depth):
    """A JSON value that is nested so deep at most."""
    kind = rng.randrange(4) if depth else 0
    if kind < 2:
        return rng.choice([1, None, "{[", '"{', "\\", "}]", ""])
    inner = [make_nested_value(rng, depth - 1) for _ in range(rng.choice([0, 1, 1, 3]))]
    return inner if kind == 2 else {f"{n}[": one for n, one in enumerate(inner)}


def depth_of(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


def test_depth_ignores_brackets_in_strings():
    rng = Random(SEED)
    for _ in range(3000):
        value = make_nested_value(rng, 8)
        text = json.dumps(value).encode()
        for limit in (2, 3, 5):
            assert is_deep(text, limit) == (depth_of(value) > limit), text
            assert not (is_shallow(pa.array([b"{}", text, b"{}"]), limit) and depth_of(value) > limit), text
