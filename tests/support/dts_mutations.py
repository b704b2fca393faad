"""Mutated records of DTS: valid ones within the schema, and ones with wrong lengths and numbers in their bytes."""

from __future__ import annotations

from io import BytesIO
from random import Random
from typing import Any

from fastavro import schemaless_reader, schemaless_writer

from adapters.decoders.dts_avro.rows import OPERATIONS, SOURCES
from replicator.testing.decoder_fuzz import NUMBERS, TEXTS, alter_bytes
from support.dts_records import NAMESPACE, PARTS, SHORT, encode_record, make_value

LONGS = [
    0,
    1,
    -1,
    2**31 - 1,
    2**31,
    -(2**31),
    2**53,
    2**55,
    2**62,
    2**63 - 1,
    -(2**63),
    253402300799,
    253402300800,
    -62135596800,
]
INTS = [0, 1, -1, 9, 59, 60, 999_999, 1_000_000, 2**31 - 1, -(2**31), 2024, 10_000, -5, 366]
CHARSETS = ["utf8mb4", "latin1", "gbk", "binary", "utf16", "sjis", "UTF-8", "", "klingon", "koi8r"]
ZONES = ["GMT+8:00", "+08:00", "Z", "UTC", "Europe/Paris", "", "+99:99", "-00:30", "+1"]
CONTENTS = [t.encode("utf-8", "surrogatepass") for t in TEXTS] + [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x81", b"\x00" * 9]
KEYS = [
    '{"PRIMARY":["id"]}',
    "{}",
    "",
    '{"PRIMARY":[]}',
    '{"PRIMARY":["no"]}',
    '{"PRIMARY":["id","id"]}',
    '{"PRIMARY":1}',
    "[",
    "\x00",
]
NAMES = ["mydb.t1", "mydb", "", "a.b.c", "a.b.c.d", "my\\u002Edb.t1", ".", "mydb.", "é.☃", None, "x" * 300 + ".t1"]


def alter_record(sent: bytes, rng: Random) -> bytes:
    """A mutated record of DTS, which its schema may not fit any more."""
    kind = rng.random()
    if kind < 0.1:
        return alter_bytes(sent, rng)
    if kind < 0.2:
        at = rng.randrange(len(sent) + 1)
        return sent[:at] + encode_number(rng.choice(LONGS)) + sent[at + rng.choice((0, 1, 1, 2)) :]
    record: Any = schemaless_reader(BytesIO(sent), SHORT, None, return_record_name=True)
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice((_head, _fields, _image, _image, _image))(record, rng)
    return encode_record(record, born=rng.random() < 0.3)


def encode_number(count: int) -> bytes:
    """A number as Avro writes it: a length, a count of items, a branch, a value."""
    out = BytesIO()
    schemaless_writer(out, "long", count)
    return out.getvalue()


def _head(record: dict[str, Any], rng: Random) -> None:
    changed: dict[str, Any] = {
        "id": rng.choice(LONGS),
        "sourceTimestamp": rng.choice(LONGS),
        "sourceTxid": rng.choice(TEXTS),
        "operation": rng.choice(OPERATIONS),
        "objectName": rng.choice(NAMES),
        "source": {"sourceType": rng.choice(SOURCES), "version": rng.choice(TEXTS)},
        "tags": rng.choice(({}, {"pk_uk_info": rng.choice(KEYS)}, {"l_db_name": rng.choice(TEXTS), "l_tb_name": "t1"})),
    }
    name = rng.choice(list(changed))
    record[name] = changed[name]


def _fields(record: dict[str, Any], rng: Random) -> None:
    fields = record["fields"]
    if not isinstance(fields, list) or not fields or rng.random() < 0.1:
        record["fields"] = rng.choice((None, "id", [], [{"name": "id", "dataTypeNumber": 8}]))
        return
    at, kind = rng.randrange(len(fields)), rng.randrange(5)
    if kind == 0:
        del fields[at]
    elif kind == 1:
        fields.append(dict(fields[at]))
    elif kind == 2:
        fields[at]["name"] = rng.choice(("", "ID", "é", "_op", '"', "x" * 300))
    else:
        fields[at]["dataTypeNumber"] = rng.choice(
            (0, 3, 4, 5, 7, 8, 10, 11, 12, 13, 16, 245, 246, 252, 253, 255, 256, -1, 2**31 - 1)
        )


def _image(record: dict[str, Any], rng: Random) -> None:
    which = rng.choice(("beforeImages", "afterImages"))
    image = record[which]
    if not isinstance(image, list) or not image or rng.random() < 0.05:
        record[which] = rng.choice((None, "drop table t", [], [None], [_value(rng)] * 10))
        return
    at, kind = rng.randrange(len(image)), rng.randrange(12)
    if kind == 0:
        del image[at]
    elif kind == 1:
        image.append(image[at])
    else:
        image[at] = _value(rng)


def _clock(rng: Random) -> dict[str, Any]:
    return {part: rng.choice((None, rng.choice(INTS))) for part in PARTS}


def _value(rng: Random) -> Any:
    text, kind = rng.choice((*TEXTS, *NUMBERS)), rng.choice(("JSON", "BLOB", "", "uuid"))
    return rng.choice(
        (
            None,
            "NULL",
            "NONE",
            make_value("Integer", precision=rng.choice(INTS), value=text),
            make_value("Character", charset=rng.choice(CHARSETS), value=rng.choice(CONTENTS)),
            make_value("Decimal", value=text, precision=rng.choice(INTS), scale=rng.choice(INTS)),
            make_value(
                "Float",
                value=rng.choice((0.0, -0.0, 1e308, 5e-324, 3.5e38, float("nan"), float("inf"))),
                precision=0,
                scale=0,
            ),
            make_value("Timestamp", timestamp=rng.choice(LONGS), millis=rng.choice(INTS)),
            (f"{NAMESPACE}.DateTime", _clock(rng)),
            make_value("TimestampWithTimeZone", value=_clock(rng), timezone=rng.choice(ZONES)),
            make_value("BinaryGeometry", type=kind, value=rng.choice(CONTENTS)),
            make_value("TextGeometry", type=kind, value=text),
            make_value("BinaryObject", type=kind, value=rng.choice(CONTENTS)),
            make_value("TextObject", type=kind, value=text),
        )
    )
