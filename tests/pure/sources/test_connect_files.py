"""Names and lines of files of a Kafka Connect sink."""

from __future__ import annotations

import base64
import json
import os
import pickle
import threading
import time
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.debezium_events import ID, SOURCE, make_column, make_envelope_schema, make_payload
from support.rows_folder import WRITTEN, write_closed_file
from support.sink_folder import encode_parquet

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.sources.files import archive_check, archive_source, file_reader
from adapters.sources.files.connect import ConnectFilesSource, parse_name
from replicator.domain.change import ERROR_HEADER, RAW
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Reject, Retryable
from replicator.domain.position import Position, TopicPartition

NAME = "shop.items+0+%010d%s"
HOME = TopicPartition("shop.items", 0)


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    return tmp_path / "topics"


def sink(folder: Path, first: int, text: str, ending: str = ".json", *, inside: str = "partition=0", age: int = 0) -> Path:
    return write_closed_file(folder / "shop.items" / inside / (NAME % (first, ending)), text.encode(), age=age)


def source(folder: Path, **more: Any) -> ConnectFilesSource:
    made = archive_source({"path": str(folder), "files": "connect", "settle": "0 seconds", **more})
    assert isinstance(made, ConnectFilesSource)
    return made


def read(folder: Path, start: Position | None = None, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    reader = source(folder, **more)
    reader.run(start or Position(), lambda batch: found.extend(batch.frame.to_pylist()), threading.Event(), once=True)
    return found


def follow(folder: Path, take: Callable[[Any], None]) -> None:
    """Read on until something is refused, for some seconds at most."""
    stop = threading.Event()
    late = threading.Timer(20, stop.set)
    late.start()
    try:
        source(folder, look_every="0 seconds").run(Position(), take, stop, once=False)
    finally:
        late.cancel()


def values(folder: Path, start: Position | None = None, **more: Any) -> list[tuple[int, bytes | None]]:
    return [(row["offset"], row["value"]) for row in read(folder, start, **more)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders+0+0000000042.json", ("orders", 0, 42, None)),
        ("cdc.public.order_items+12+42.json.gz", ("cdc.public.order_items", 12, 42, None)),
        ("a.keys+3+0000000000.keys.json", ("a.keys", 3, 0, "keys")),
        ("orders+0+7.headers.json.gz", ("orders", 0, 7, "headers")),
        ("orders+0+7.bin", ("orders", 0, 7, None)),
        ("orders+0+7.avro", ("orders", 0, 7, None)),
        ("orders+0+7.keys.avro", ("orders", 0, 7, "keys")),
        ("orders+0+7.snappy.parquet", ("orders", 0, 7, None)),
        ("orders+3+0000000007+0000000009.avro", ("orders", 3, 7, None)),
        ("orders+0+7.parquet", ("orders", 0, 7, None)),
    ],
)
def test_file_names(name, expected):
    place, first, part, _ = parse_name(Path("/x") / name)
    assert (*place, first, part) == expected


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("orders-0-42.json", "is no file of a sink"),
        ("orders+0+42+43.txt", "sinks to HDFS name files of StringFormat"),
        ("orders-0-42", "named as Aiven's sinks name files"),
        ("orders-0-0000000042.gz", "named as Aiven's sinks name files"),
        ("orders_0_42.avro", "named as Cloudera's sinks name files: by the last offset"),
        ("000000000042_1700000000000_1700000001000.json", "named as Lenses' sinks name files"),
        ("orders(0_000000000042).json", "named as Lenses' sinks name files"),
        ("orders+0+42+x.json", "its name is not like orders"),
        ("orders+0+42.values.json", "is no file of a sink"),
        ("orders+2147483648+42.json", "is no file of a sink"),
        ("orders+0+9223372036854775807.json", "is no file of a sink"),
        ("orders+0+42.keys.snappy.parquet", "has an unsupported format"),
        ("orders+0+42.keys.parquet", "has an unsupported format"),
        ("orders+0+42.values.parquet", "is no file of a sink"),
    ],
)
def test_other_names_are_refused(topics, name, sentence):
    write_closed_file(topics / name, b"{}\n")
    with pytest.raises(ConfigProblem, match=sentence):
        read(topics)
    [found] = archive_check("sink", {"path": str(topics), "files": "connect"}).diagnose()
    assert (found.severity, sentence in found.sentence) == ("error", True)


def test_other_files_are_skipped(topics):
    sink(topics, 0, '{"a": 1}\n')
    write_closed_file(topics / "_SUCCESS.json", b"x")
    write_closed_file(topics / ".tmp.json", b"x")
    write_closed_file(topics / "README.md", b"x")
    write_closed_file(topics / "notes-42.txt", b"x")
    assert values(topics) == [(0, b'{"a": 1}')]
    [found] = archive_check("sink", {"path": str(topics), "files": "connect"}).diagnose()
    assert (found.severity, found.sentence) == ("ok", f"{topics} has 1 file.")


def test_lines_are_messages(topics):
    sink(topics, 5, '{"a":1}\n"{\\"a\\":\\u00e9}"\nnull\n 7 \n"cut\nno json\n[1]')
    assert values(topics) == [
        (5, b'{"a":1}'),
        (6, '{"a":é}'.encode()),
        (7, None),
        (8, b"7"),
        (9, b'"cut'),
        (10, b"no json"),
        (11, b"[1]"),
    ]
    sink(topics, 12, '"a"\nnull\n\n  {}\n', ".bin.gz")
    assert values(topics, Position({HOME: 12})) == [(12, b'"a"'), (13, b"null"), (14, b""), (15, b"  {}")]


def test_records_have_keys_headers_and_the_time_of_their_file(topics):
    file = sink(topics, 2, '{"a":1}\n{"a":2}\n{"a":3}\n').name
    sink(topics, 2, '"text"\n{"id":2}\nnull\n', ".keys.json")
    sink(topics, 2, '{"headers":[{"key":"h","value":"v"},{"key":"h","value":null}]}\n{"headers":[]}\n[]\n', ".headers.json")
    first, second, bad = read(topics)
    assert (first["key"], second["key"]) == (b"text", b'{"id":2}')
    assert [(h["name"], h["value"]) for h in first["headers"]] == [("h", b"v"), ("h", None)]
    assert (second["headers"], second["offset"], second["timestamp"].timestamp()) == ([], 3, WRITTEN)
    assert (bad["topic"], bad["offset"], bad["value"]) == (f"archive:shop.items/partition=0/{file}", 3, b'{"a":3}')
    assert "its headers cannot be read" in Reject.parse(bad["headers"][0]["value"].decode()).sentence
    assert bad["headers"][0]["name"] == ERROR_HEADER


@pytest.mark.parametrize("inside", ["partition=0", "year=2024/month=01"])
def test_overlapping_files_are_refused(topics, inside):
    sink(topics, 0, "{}\n{}\n{}\n")
    sink(topics, 2, "{}\n", inside=inside)
    with pytest.raises(ConfigProblem, match=r"0.json continues at record 2 of shop.items\[0\], with which .*2.json begins"):
        read(topics)


def test_later_overlapping_file_is_refused(topics):
    sink(topics, 0, "{}\n{}\n{}\n")
    seen: list[int] = []

    def take(batch: Any) -> None:
        seen.extend(batch.frame["offset"].to_pylist())
        if not batch.records and seen == [0, 1, 2]:
            sink(topics, 2, "{}\n{}\n")

    with pytest.raises(ConfigProblem, match="continues at record 2"):
        follow(topics, take)
    assert seen == [0, 1, 2]
    with pytest.raises(ConfigProblem, match="continues at record 2"):
        read(topics, Position({HOME: 3}))


def test_offsets_may_have_gaps(topics):
    sink(topics, 0, "{}\n{}\n")
    sink(topics, 7, "{}\n")
    assert values(topics) == [(0, b"{}"), (1, b"{}"), (7, b"{}")]
    assert (dict(source(topics).start()), dict(source(topics).end())) == ({HOME: 0}, {HOME: 8})


def test_two_files_with_the_same_first_offset_are_refused(topics):
    sink(topics, 0, "{}\n")
    sink(topics, 0, "{}\n", inside="hour=01")
    with pytest.raises(ConfigProblem, match="begin with the same record"):
        read(topics)


def test_files_of_the_hdfs_sink_have_their_last_offset_in_the_name(topics):
    sink(topics, 0, "{}\n{}\n", "+0000000004.json")
    sink(topics, 5, "{}\n", "+0000000005.json")
    assert values(topics) == [(0, b"{}"), (1, b"{}"), (5, b"{}")]
    sink(topics, 5, "{}\n")
    with pytest.raises(ConfigProblem, match="begin with the same record"):
        read(topics)


def test_late_file_is_data_loss(topics):
    sink(topics, 5, "{}\n")

    def take(batch: Any) -> None:
        if not batch.records:
            sink(topics, 1, "{}\n")

    with pytest.raises(DataLoss, match=r"appeared after later files of table shop.items had"):
        follow(topics, take)


def test_keys_without_values_are_refused_when_files_are_stable(topics, monkeypatch):
    """A copy that keeps times may write keys first."""
    sink(topics, 0, "{}\n")
    sink(topics, 1, '{"id": 1}\n', ".keys.json", inside="tombstone")
    assert len(read(topics)) == 1
    monkeypatch.setattr("adapters.sources.files.connect.SETTLED_SECONDS", 0)
    with pytest.raises(ConfigProblem, match="of records without values") as refused:
        read(topics)
    assert "copy it there too" in refused.value.next_step
    assert len(source(topics, settle="1 hour")._list_files()) == 1, "whoever copies slowly has as long"


def test_file_without_keys_waits_if_its_partition_has_keys(topics):
    sink(topics, 0, "{}\n")
    sink(topics, 1, "{}\n")
    sink(topics, 1, "1\n", ".keys.json")
    sink(topics, 2, "{}\n")
    with pytest.raises(Retryable, match=r"0002.json has no file of keys"):
        read(topics)
    sink(topics, 2, "2\n", ".keys.json")
    assert [row["key"] for row in read(topics)] == [None, b"1", b"2"]


def test_missing_keys_are_refused(topics):
    sink(topics, 0, "{}\n{}\n")
    sink(topics, 0, "1\n", ".keys.json")
    with pytest.raises(EnvironmentProblem, match=r"keys.json has 1 line, and .* has more"):
        read(topics)
    with pytest.raises(EnvironmentProblem, match=r"keys.json has 1 line, and .* has more"):
        source(topics).end()
    sink(topics, 2, "{}\n")
    assert source(topics, settle="1 hour").end() == Position({HOME: 3}), "the keys are being copied"


def read_at_first(folder: Path, **more: Any) -> list[int]:
    """The offsets in the files that are complete now."""
    found, stop = [], threading.Event()

    def take(batch: Any) -> None:
        found.extend(batch.frame["offset"].to_pylist())
        stop.set()

    source(folder, **more).run(Position(), take, stop, once=False)
    return found


@pytest.mark.slow
def test_files_are_read_when_they_are_stable(topics):
    sink(topics, 0, "{}\n")
    time.sleep(1.1)
    fresh = sink(topics, 1, "{}\n")
    sink(topics, 1, "1\n", ".keys.json")
    os.utime(fresh.with_name(NAME % (1, ".keys.json")), (time.time() + 30,) * 2)
    assert read_at_first(topics, settle="1 second") == [0]


def test_copied_values_with_old_times_wait_for_their_keys(topics):
    file = sink(topics, 0, "{}\n")
    assert time.time() - file.stat().st_mtime > 3600
    assert read_at_first(topics, settle="1 hour") == []


@pytest.mark.slow
def test_range_waits_for_recently_written_files(topics):
    """A file that is left out would look like a gap."""
    sink(topics, 0, "{}\n{}\n")
    found: list[int] = []
    until = Position({HOME: 2})
    source(topics, settle="1 second").read(
        Position({HOME: 0}), until, lambda batch: found.extend(batch.frame["offset"].to_pylist()), threading.Event()
    )
    assert found == [0, 1]


def test_lines_have_limits(topics):
    long = "x" * 4096
    sink(topics, 0, f'{{"a":1}}\n{long}\n{{"a":2}}\n{{"a":3}}\n', ".json.gz")
    sink(topics, 0, f"1\n2\n{long}\n4\n", ".keys.json.gz")
    rows = read(topics, message_bytes=200)
    assert [(row["offset"], row["key"]) for row in rows if row["topic"] == HOME.topic] == [(0, b"1"), (3, b"4")]
    rejects = [Reject.parse(row["headers"][0]["value"].decode()) for row in rows if row["topic"] != HOME.topic]
    assert [reject.code for reject in rejects] == ["TOO_LARGE", "TOO_LARGE"]
    assert "keys.json.gz line 3" in rejects[1].sentence


def test_only_possibly_new_files_are_read_again(topics, monkeypatch):
    for first in range(6):
        sink(topics, first, "{}\n")
    opened: list[str] = []
    own = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *how: (opened.append(self.name), own(self, *how))[1])
    assert values(topics, Position({HOME: 4})) == [(4, b"{}"), (5, b"{}")]
    # The first one says where records begin; and of those before one more is read, which may go on.
    assert {int(name[13:23]) for name in opened} == {0, 2, 3, 4, 5}


def test_pickled_source_has_no_open_files(topics):
    sink(topics, 0, "{}\n")
    sink(topics, 0, "1\n", ".keys.json")
    reader = source(topics)
    reader.run(Position(), lambda _: None, threading.Event(), once=True)
    assert pickle.loads(pickle.dumps(reader._form))._beside == {}


DECIMAL = {"name": "org.apache.kafka.connect.data.Decimal", "version": 1, "parameters": {"scale": "2"}}
VALUES = [
    (make_column("i", "int32", "io.debezium.time.Date"), pa.int32(), 19723, 19723),
    (make_column("s", "int16"), pa.int32(), -7, -7),
    (
        make_column("micros", "int64", "io.debezium.time.MicroTimestamp"),
        pa.int64(),
        1_704_067_200_000_001,
        1_704_067_200_000_001,
    ),
    (make_column("t", "string"), pa.string(), "é", "é"),
    (make_column("b", "bytes"), pa.binary(), b"\x00\xff", "AP8="),
    (make_column("bool", "boolean"), pa.bool_(), True, True),
    (make_column("d", "double"), pa.float64(), float("nan"), "NaN"),
    (make_column("n", "bytes") | DECIMAL, pa.decimal256(64, 2), Decimal("-1.28"), "gA=="),
    (make_column("n", "bytes") | DECIMAL, pa.decimal256(64, 2), Decimal("9" * 50 + ".99"), None),
    (make_column("day", "int32", "org.apache.kafka.connect.data.Date"), pa.date32(), date(1, 1, 1), -719162),
    (make_column("at", "int64", "org.apache.kafka.connect.data.Timestamp"), pa.timestamp("ms", "UTC"), 2**53, 2**53),
    (make_column("time", "int32", "org.apache.kafka.connect.data.Time"), pa.time32("ms"), 86_399_999, 86_399_999),
    (make_column("l", "array", items={"type": "string", "optional": True}), pa.list_(pa.string()), ["a", None], ["a", None]),
    (
        make_column("days", "array", items=make_column("x", "int32", "org.apache.kafka.connect.data.Date")),
        pa.list_(pa.date32()),
        [date(1970, 1, 2)],
        [1],
    ),
    (
        make_column("m", "map", keys={"type": "string"}, values={"type": "bytes", "optional": True} | DECIMAL),
        pa.map_(pa.string(), pa.decimal128(9, 2)),
        [("k", Decimal("2.56")), ("none", None)],
        {"k": "AQA=", "none": None},
    ),
]


@pytest.mark.parametrize(
    ("field", "kind", "value", "expected"), VALUES, ids=[f"{v[0]['field']}{n}" for n, v in enumerate(VALUES)]
)
def test_parquet_values_equal_those_of_the_json_converter(topics, field, kind, value, expected):
    row = {"type": "struct", "name": "shop.items.Value", "optional": True, "fields": [field], "field": "after"}
    connect = {"type": "struct", "name": "shop.items.Envelope", "fields": [row, make_column("op", "string")]}
    after = pa.array([{field["field"]: value}, {field["field"]: None}, None], pa.struct([(field["field"], kind)]))
    table = pa.table({"after": after, "op": ["c", "u", "d"]})
    write_closed_file(topics / (NAME % (7, ".snappy.parquet")), encode_parquet(connect, table))
    write_closed_file(topics / (NAME % (7, ".keys.json")), b'"a"\n"b"\n"c"\n')
    rows = read(topics)
    assert [(r["topic"], r["offset"], r["key"]) for r in rows] == [
        ("shop.items", 7 + n, b"abc"[n : n + 1]) for n in range(3)
    ]
    said = [json.loads(r["value"]) for r in rows]
    (told, _), name = said[0]["schema"]["fields"], field["field"]
    assert told["fields"][0]["type"] == field["type"] and told["fields"][0].get("name") == field.get("name")
    found = said[0]["payload"]["after"][name]
    if expected is None:
        assert int.from_bytes(base64.b64decode(found), "big", signed=True) == int(str(value).replace(".", ""))
    else:
        assert found == expected
    assert [one["payload"] for one in said[1:]] == [{"after": {name: None}, "op": "u"}, {"after": None, "op": "d"}]


ROW = {"type": "struct", "name": "shop.items.Value", "fields": [make_column("id", "int64")]}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (encode_parquet(ROW, pa.table({"id": [1]}), name="other"), "does not name the schema"),
        (encode_parquet(ROW, pa.table({"ids": [1]})), "has other columns than the schema"),
        (encode_parquet(ROW, pa.table({"id": pa.array([1], pa.timestamp("us"))})), "is of type"),
    ],
)
def test_other_parquet_files_are_refused(topics, content, sentence):
    write_closed_file(topics / (NAME % (0, ".parquet")), content)
    with pytest.raises(ConfigProblem, match=sentence):
        read(topics)


def test_partial_parquet_file_is_reported(topics):
    write_closed_file(topics / (NAME % (0, ".parquet")), encode_parquet(ROW, pa.table({"id": [1]}))[:-9])
    with pytest.raises(EnvironmentProblem, match="is no whole Parquet file"):
        read(topics)


def test_overlapping_parquet_files_are_refused(topics, monkeypatch):
    write_closed_file(topics / (NAME % (0, ".parquet")), encode_parquet(ROW, pa.table({"id": [1, 2, 3]})))
    monkeypatch.setattr(file_reader, "PARQUET_ROWS", 2)
    assert [row["offset"] for row in read(topics)] == [0, 1, 2]
    sink(topics, 2, "{}\n")
    with pytest.raises(ConfigProblem, match="continues at record 2"):
        read(topics)


def test_events_in_parquet_have_the_types_of_their_schema(topics):
    fields = [ID, make_column("price", "bytes") | DECIMAL, make_column("at", "int64", "io.debezium.time.MicroTimestamp")]
    row = pa.struct([("id", pa.int64()), ("price", pa.decimal128(10, 2)), ("at", pa.int64())])
    said = pa.struct([(one["field"], pa.string() if one["type"] == "string" else pa.int64()) for one in SOURCE])
    columns = {"before": row, "after": row, "source": said, "op": pa.string()}
    events = [
        make_payload("c", after={"id": 1, "price": Decimal("1.50"), "at": 1_000_001}, at=1),
        make_payload("d", before={"id": 2, "price": None, "at": None}, at=2),
    ]
    table = pa.table({name: pa.array([event[name] for event in events], kind) for name, kind in columns.items()})
    write_closed_file(topics / "cdc.public.t+0+3.snappy.parquet", encode_parquet(make_envelope_schema(fields), table))
    raw = pa.Table.from_pylist(read(topics), RAW)
    decoder = DebeziumJsonDecoder({"keys": {"public.t": ["id"]}})
    [route, _] = decoder.route(raw).to_pylist()
    assert (route["table"], route["error"]) == ("public.t", None)
    found = decoder.decode(raw, decoder.learn(raw, "public.t", route["fingerprint"])).to_pylist()
    assert [(r["_op"], r["id"], r["price"], r["_error"], r["_offset"]) for r in found] == [
        ("c", 1, Decimal("1.50"), None, 3),
        ("d", 2, None, None, 4),
    ]
    assert found[0]["at"] == datetime(1970, 1, 1, 0, 0, 1, 1)
