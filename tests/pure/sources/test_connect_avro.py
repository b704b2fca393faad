"""Avro files of a Kafka Connect sink, with every codec, and damaged files."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from paths import GOLDEN
from support.debezium_events import make_column
from support.rows_folder import write_closed_file
from support.sink_folder import BYTES, encode_avro

from adapters.decoders import avro as arrow_avro
from adapters.decoders.avro import FREE_BYTES
from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.sources.files import archive_source
from adapters.sources.files.avro_files import CODECS, HEADER, MAGIC, read_messages
from adapters.sources.files.file_list import ArchiveFile, find_files
from adapters.sources.files.file_reader import LONGEST
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, EnvironmentProblem, ReplicatorError
from replicator.domain.position import Position
from replicator.testing.contract import for_all

GOLDEN = GOLDEN / "connect_avro"
NAME = "cdc.public.t+0+%010d%s"
SYNC = b"s" * 16
SMALL = 64 * 1024
"""limits.message_bytes in these tests."""
randbytes = Random(0).randbytes
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": lambda data: zlib.compress(data)[2:-4],
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstandard": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
    "snappy": lambda data: pa.Codec("snappy").compress(data, asbytes=True) + zlib.crc32(data).to_bytes(4, "big"),
}


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    return tmp_path / "topics"


def sink(topics: Path, content: bytes, first: int = 0, ending: str = ".avro") -> Path:
    return write_closed_file(topics / (NAME % (first, ending)), content)


def read_golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def read(topics: Path, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    source = archive_source({"path": str(topics), "files": "connect", "settle": "0 seconds", **more})
    source.run(Position(), lambda batch: found.extend(batch.frame.to_pylist()), threading.Event(), once=True)
    return found


def number(value: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", value)
    return out.getvalue()


def header(schema: Any, codec: str = "null", **more: bytes) -> bytes:
    out = io.BytesIO()
    meta = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode(), **more}
    fastavro.schemaless_writer(out, HEADER, {"magic": MAGIC, "meta": meta, "sync": SYNC})
    return out.getvalue()


def block(count: int, packed: bytes) -> bytes:
    return number(count) + number(len(packed)) + packed + SYNC


@pytest.mark.parametrize("codec", CODECS)
def test_events_written_by_java_equal_those_of_the_json_converter(topics, codec):
    sink(topics, read_golden(f"events.{codec}.avro"), 7)
    rows = read(topics)
    assert [(row["topic"], row["partition"], row["offset"]) for row in rows] == [
        ("cdc.public.t", 0, 7 + n) for n in range(3)
    ]
    expected = read_golden("events.jsonl").splitlines()
    assert [json.loads(row["value"]) for row in rows] == [json.loads(line) for line in expected]


def test_values_have_the_types_of_their_schema(topics):
    sink(topics, read_golden("events.snappy.avro"))
    raw = pa.Table.from_pylist(read(topics), RAW)
    decoder = DebeziumJsonDecoder({"keys": {"public.t": ["id"]}})
    [route, *_] = decoder.route(raw).to_pylist()
    found = decoder.decode(raw, decoder.learn(raw, "public.t", route["fingerprint"])).to_pylist()
    assert [(r["_op"], r["id"], r["price"], r["_error"], r["_offset"]) for r in found] == [
        ("c", 1, Decimal("2.56"), None, 0),
        ("u", 2, None, None, 1),
        ("d", 1, Decimal("2.56"), None, 2),
    ]
    assert (found[0]["day"], found[0]["at"]) == (date(2024, 1, 1), datetime(2024, 1, 1, 0, 0, 0, 1))


@pytest.mark.parametrize(
    ("content", "ending"),
    [(b"1\n2\n3\n", ".json"), (read_golden("events.null.avro"), ".avro"), (read_golden("extra.bytes.avro"), ".avro")],
)
def test_keys_and_headers_are_avro(topics, content, ending):
    """Unless the connector is configured otherwise."""
    sink(topics, content, 5, ending)
    sink(topics, read_golden("extra.keys.avro"), 5, ".keys.avro")
    sink(topics, read_golden("extra.headers.avro"), 5, ".headers.avro")
    rows = read(topics)
    assert [(row["offset"], row["key"]) for row in rows] == [(5 + n, b"key %d" % n) for n in range(3)]
    assert [[(h["name"], h["value"].decode()) for h in row["headers"]] for row in rows] == [
        [("h", f"é{n}{m}") for m in range(n + 1)] for n in range(3)
    ]


def test_text_and_bytes_are_unchanged(topics):
    sink(topics, read_golden("extra.bytes.avro"), 5)
    assert [row["value"] for row in read(topics)] == [b"\0\n\0\xff", None, b"\0\n\2\xff"]
    sink(topics, encode_avro({"type": "string"}, ['{"a": "é"}', "  ", ""]), 8)
    assert [row["value"] for row in read(topics)][3:] == ['{"a": "é"}'.encode(), b"  ", b""]


def test_missing_keys_are_refused(topics):
    sink(topics, encode_avro(BYTES, [b"1", b"2"]))
    sink(topics, encode_avro(BYTES, [b"1"]), 0, ".keys.avro")
    with pytest.raises(EnvironmentProblem, match=r"keys.avro has 1 line, and .* has more"):
        read(topics)


def test_offsets_continue_over_blocks(topics):
    messages = [b"%d" % n for n in range(1000)]
    content = encode_avro(BYTES, messages, "deflate", block=50)
    sink(topics, content)
    assert content.count(content[-16:]) > 50
    assert [(row["offset"], row["value"]) for row in read(topics, batch_records=7)] == list(enumerate(messages))
    sink(topics, encode_avro(BYTES, [b""]), 999)
    with pytest.raises(ConfigProblem, match="continues at record 999"):
        read(topics)


def file_of(folder: Path, content: bytes) -> ArchiveFile:
    folder.mkdir(exist_ok=True)
    (folder / "t.avro").write_bytes(content)
    [found] = find_files(str(folder), (".avro",))
    return found


def test_values_equal_those_of_another_library(tmp_path):
    for content in (read_golden("extra.keys.avro"), encode_avro({"type": "string"}, ["a", "", "é"], "xz")):
        expected = [text.encode() for text in fastavro.reader(io.BytesIO(content))]
        assert list(read_messages(file_of(tmp_path, content), LONGEST)) == expected


@pytest.mark.parametrize("codec", CODECS)
def test_compression_bomb_is_refused_at_little_cost(topics, codec):
    packed = PACKERS[codec](bytes(32 << 20))
    sink(topics, header("bytes", codec) + block(32 << 20, packed))
    tracemalloc.start()
    with pytest.raises(ConfigProblem, match=r"has a block .*, more than \d+: limits.message_bytes") as found:
        read(topics, message_bytes=SMALL)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    assert "limits.message_bytes" in (found.value.next_step or "")


@pytest.mark.slow
def test_message_of_the_maximum_size_is_read(topics):
    longest = [randbytes(1 << 20), randbytes(SMALL - 16)]  # They do not pack.
    for codec, packer in PACKERS.items():
        body = b"".join(number(len(one)) + one for one in longest)
        sink(topics, header("bytes", codec) + block(2, packer(body)), 0)
        assert [len(row["value"]) for row in read(topics, message_bytes=SMALL)] == [len(one) for one in longest], codec


@pytest.mark.slow
def test_record_with_too_many_values_is_refused(topics, monkeypatch):
    """An item is a byte in the file, and an object in memory."""
    monkeypatch.setattr(arrow_avro, "READS_PER_COLUMN", 0)
    connect = {
        "type": "struct",
        "name": "t.V",
        "fields": [make_column("a", "array", items={"type": "struct", "fields": [make_column("x", "int32")]})],
    }
    sink(topics, encode_avro(connect, [{"a": [{"x": 0}] * 60_000}], "deflate"))
    with pytest.raises(ConfigProblem, match="more values than a record may have"):
        read(topics)
    few = [{"a": [{"x": 0}] * 20_000}] * 4
    sink(topics, encode_avro(connect, few, block=16 * FREE_BYTES))
    assert len(read(topics)) == len(few)


PLAIN = header("bytes") + block(1, b"\x02a")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "ends too early"),
        (PLAIN[:30], "ends too early"),
        (PLAIN[:-1], "ends too early"),
        (PLAIN[:-18], "ends too early"),
        (PLAIN + b"\x02", "ends too early"),
        (b"PAR1" + PLAIN[4:], "it does not begin as Avro files do"),
        (PLAIN[:-1] + b"t", "a block does not end where it says"),
        (header("bytes") + block(2, b"\x02a"), "is damaged"),
        (header("bytes") + block(1, b"\x02aa"), "bytes behind the last value"),
        (header("bytes") + block(-1, b"\x02a"), "a size below 0"),
        (header("string") + block(1, b"\x02\xff"), "is damaged"),
        (header("bytes", "deflate") + block(1, b"\xff\xff"), "a block cannot be unpacked"),
        (header("bytes", "bzip2") + block(1, b"\xff\xff"), "a block cannot be unpacked"),
        (header("bytes", "xz") + block(1, b"\xff" * 9), "a block cannot be unpacked"),
        (header("bytes", "zstandard") + block(1, b"\xff\xff"), "a block cannot be unpacked"),
        (header("bytes", "snappy") + block(1, b"\x02\x04\x02a" + bytes(4)), "a checksum is wrong"),
        (header("bytes", "snappy") + block(1, b""), "is damaged"),
        (MAGIC + number(1) + number(1 << 40), "its header is too long"),
        (MAGIC + number(1) + number(-9), "is damaged|too long"),
    ],
)
def test_damaged_or_partial_files_are_reported(topics, content, sentence):
    sink(topics, content)
    with pytest.raises(EnvironmentProblem, match=sentence):
        read(topics)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (header("bytes", "lz4"), "is packed with codec 'lz4', which is not read"),
        (header({"type": "record", "name": "a.T", "fields": [{"name": "t", "type": "a.T"}]}), "is recursive"),
        (header(["int", "string"]), "a union of something else"),
        (header("null"), "names the type 'null'"),
        (header("bytes", **{"avro.schema": b"{"}), "no Avro schema"),
    ],
)
def test_files_that_no_connector_writes_are_refused(topics, content, sentence):
    sink(topics, content)
    with pytest.raises(ConfigProblem, match=sentence):
        read(topics)


def test_random_bytes_only_stop_the_source(tmp_path):
    strategies = {
        "codec": st.sampled_from(sorted(CODECS)),
        "place": st.integers(0, 2_700),
        "other": st.binary(min_size=1, max_size=3),
    }

    @for_all(**strategies)
    def check(codec, place, other):
        content = read_golden(f"events.{codec}.avro")
        content = content[:place] + other + content[place + len(other) :]
        try:
            for message in read_messages(file_of(tmp_path, content), LONGEST):
                json.loads(message)
        except ReplicatorError as error:
            assert str(error)
