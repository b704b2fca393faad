"""Values of every type, written and read: new tables, existing tables and edge values."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from support.pg_case import CollectedRejects, LaneWrites, apply_write, fetch_rows, make_pg_lane, make_table, open_sink

from replicator.domain.errors import Fatal, Reject

pytestmark = pytest.mark.postgres

US = pa.timestamp("us")
UTC_US = pa.timestamp("us", "UTC")
POINT = pa.struct([("x", pa.float64()), ("wkb", pa.binary()), ('na"me', pa.string())])

CASES = [
    ("boolean", pa.bool_(), "", [True, False], ["true", "false"]),
    ("smallint", pa.int8(), "", [-128, 127], ["-128", "127"]),
    ("smallint", pa.uint8(), "", [255], ["255"]),
    ("integer", pa.uint16(), "", [65535], ["65535"]),
    ("bigint", pa.uint32(), "", [2**32 - 1], ["4294967295"]),
    ("bigint", pa.int64(), "", [-(2**63), 2**63 - 1], ["-9223372036854775808", "9223372036854775807"]),
    ("numeric(20,0)", pa.uint64(), "", [2**64 - 1], ["18446744073709551615"]),
    ("real", pa.float32(), "", [0.10000000149011612, float("nan"), float("-inf")], ["0.1", "NaN", "-Infinity"]),
    (
        "double precision",
        pa.float64(),
        "",
        [0.1, 1e300, float("nan"), float("inf"), 5e-324],
        ["0.1", "1e+300", "NaN", "Infinity", "5e-324"],
    ),
    (
        "numeric(38,10)",
        pa.decimal128(38, 10),
        "",
        [Decimal("-1234567890123456789012345678.0123456789"), Decimal("1E-10")],
        ["-1234567890123456789012345678.0123456789", "0.0000000001"],
    ),
    ("numeric(60,5)", pa.decimal256(60, 5), "", [Decimal("9" * 55 + ".00001")], ["9" * 55 + ".00001"]),
    (
        "numeric",
        pa.string(),
        "io.debezium.data.VariableScaleDecimal",
        ["12345678901234567890.123456789", "NaN", "Infinity"],
        ["12345678901234567890.123456789", "NaN", "Infinity"],
    ),
    ("numeric", pa.string(), "org.apache.kafka.connect.data.Decimal", [f"{'9' * 80}.5"], [f"{'9' * 80}.5"]),
    ("tsvector", pa.string(), "io.debezium.data.Tsvector", ["'a':1 'it''s':2A"], ["'a':1 'it''s':2A"]),
    (
        "text",
        pa.string(),
        "",
        ["", "NULL", "\\N", "\\.", 'a"b,c\n\r\n\\', "Émile ☃ 漢字 🎉", " x "],
        ["", "NULL", "\\N", "\\.", 'a"b,c\n\r\n\\', "Émile ☃ 漢字 🎉", " x "],
    ),
    ("bytea", pa.binary(), "", [b"", b"\x00\xff\\", b"x" * 3], ["\\x", "\\x00ff5c", "\\x787878"]),
    (
        "date",
        pa.date32(),
        "",
        [date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31)],
        ["2024-02-29", "0001-01-01", "9999-12-31"],
    ),
    (
        "date",
        pa.date32(),
        "",
        [pa.scalar(n, pa.int32()).cast(pa.date32()) for n in (-719163, 2932897, 2147483647, -2147483648)],
        ["0001-12-31 BC", "10000-01-01", "infinity", "-infinity"],
    ),
    (
        "time without time zone",
        pa.time64("us"),
        "",
        [time(0), time(23, 59, 59, 999999), pa.scalar(86_400_000_000, pa.int64()).cast(pa.time64("us"))],
        ["00:00:00", "23:59:59.999999", "24:00:00"],
    ),
    (
        "timestamp without time zone",
        US,
        "",
        [datetime(2024, 2, 29, 12, 34, 56, 123456), datetime(1, 1, 1)],
        ["2024-02-29 12:34:56.123456", "0001-01-01 00:00:00"],
    ),
    (
        "timestamp with time zone",
        UTC_US,
        "",
        [datetime(2024, 2, 29, 10, 34, 56, 123456, UTC)],
        ["2024-02-29 10:34:56.123456+00"],
    ),
    (
        "timestamp with time zone",
        UTC_US,
        "",
        [
            pa.scalar(n, UTC_US)
            for n in (
                9_223_372_036_825_200_000,
                -9_223_372_036_832_400_000,
                253_402_300_800_000_000,
                -62_135_596_800_000_001,
            )
        ],
        ["infinity", "-infinity", "10000-01-01 00:00:00+00", "0001-12-31 23:59:59.999999+00 BC"],
    ),
    (
        "text",
        pa.timestamp("ns"),
        "",
        [pa.scalar(1_700_000_000_123_456_789, pa.timestamp("ns"))],
        ["2023-11-14 22:13:20.123456789"],
    ),
    (
        "interval",
        pa.duration("us"),
        "",
        [timedelta(days=-1, microseconds=1), timedelta(0)],
        ["-23:59:59.999999", "00:00:00"],
    ),
    (
        "interval",
        pa.string(),
        "io.debezium.time.Interval",
        ["P1Y2M3DT4H5M6.789S", "P-1Y"],
        ["1 year 2 mons 3 days 04:05:06.789", "-1 years"],
    ),
    ("time with time zone", pa.string(), "io.debezium.time.ZonedTime", ["10:15:30.5Z"], ["10:15:30.5+00"]),
    (
        "uuid",
        pa.string(),
        "io.debezium.data.Uuid",
        ["11111111-1111-1111-1111-111111111111"],
        ["11111111-1111-1111-1111-111111111111"],
    ),
    (
        "jsonb",
        pa.string(),
        "io.debezium.data.Json",
        ['{"a": [1, null, "\\u00e9"]}', "null", '"x"'],
        ['{"a": [1, null, "é"]}', "null", '"x"'],
    ),
    ("text", pa.string(), "io.debezium.data.Xml", ["<a>&amp;</a>"], ["<a>&amp;</a>"]),
    (
        "text[]",
        pa.list_(pa.string()),
        "",
        [[], ["red", 'a,"b\\', None, "", "NULL", "{}"]],
        ["{}", '{red,"a,\\"b\\\\",NULL,"","NULL","{}"}'],
    ),
    ("integer[]", pa.list_(pa.int32()), "", [[1, None, 3]], ["{1,NULL,3}"]),
    ("bytea[]", pa.list_(pa.binary()), "", [[b"\x00\xff", b""]], ['{"\\\\x00ff","\\\\x"}']),
    (
        "timestamp with time zone[]",
        pa.list_(UTC_US),
        "",
        [[datetime(2024, 1, 1, tzinfo=UTC), None]],
        ['{"2024-01-01 00:00:00+00",NULL}'],
    ),
    ("double precision[]", pa.list_(pa.float64()), "", [[0.1, float("nan"), float("inf")]], ["{0.1,NaN,Infinity}"]),
    (
        "jsonb",
        POINT,
        "",
        [{"x": 1.5, "wkb": b"\x00\x01", 'na"me': 'q"\\\n\x01é'}, {"x": float("nan"), "wkb": None, 'na"me': None}],
        ['{"x": 1.5, "wkb": "AAE=", "na\\"me": "q\\"\\\\\\n\\u0001é"}', '{"x": "NaN", "wkb": null, "na\\"me": null}'],
    ),
    ("jsonb", pa.map_(pa.string(), pa.string()), "", [[("a", "1"), ('"', None)], []], ['{"\\"": null, "a": "1"}', "{}"]),
    ("jsonb", pa.list_(pa.list_(pa.int32())), "", [[[1, 2], None, []]], ["[[1, 2], null, []]"]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_new_column_has_a_suitable_type_and_exact_values(emptied_dsn: str, case: tuple) -> None:
    """Values are compared as the text that PostgreSQL writes. NULL is written as well."""
    kind, arrow, source_type, values, texts = case
    feed = LaneWrites(make_table({"id": pa.int64(), "v": arrow}, v=source_type))
    rows = [{"id": i} for i in range(len(values) + 1)]
    with open_sink(emptied_dsn) as sink:
        write = feed.write(*rows)
        typed = _type_values([*values, None], arrow)
        frame = write.folded.frame
        object.__setattr__(write.folded, "frame", frame.set_column(frame.column_names.index("v"), "v", typed))
        assert apply_write(sink, write).counts.applied == len(rows)
    found = fetch_rows(
        emptied_dsn.replace("dbname", "options='-c timezone=UTC' dbname"),
        "SELECT v::text, pg_typeof(v)::text FROM mirror.items ORDER BY id",
    )
    assert [v for v, _ in found] == [*texts, None]
    modified = fetch_rows(
        emptied_dsn,
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'mirror.items'::regclass AND attname = 'v'",
    )
    assert modified == [(kind,)]


def _type_values(values: list, arrow: pa.DataType) -> pa.Array:
    """An array of the values. Arrow scalars stand for values outside the range of Python's own types."""
    if not isinstance(values[0], pa.Scalar):
        return pa.array(values, arrow)
    numbers = pa.array([v and v.value for v in values], pa.int64())
    return numbers.cast(pa.int32()).view(arrow) if pa.types.is_date(arrow) else numbers.view(arrow)


EXISTING = [
    ("varchar(20)", pa.string(), "", "abc", "abc"),
    ("int4", pa.int64(), "", 2**31 - 1, "2147483647"),
    ("smallint", pa.decimal128(10, 2), "", Decimal("12.00"), "12"),
    ("numeric(10,2)", pa.int64(), "", 7, "7.00"),
    ("numeric(10,2)", pa.decimal128(38, 10), "", Decimal("1.5"), "1.50"),
    ("numeric(38,10)", pa.string(), "io.debezium.data.VariableScaleDecimal", "1.5", "1.5000000000"),
    ("numeric", pa.float64(), "", 0.1, "0.1"),
    ("double precision", pa.int32(), "", 7, "7"),
    ("text", pa.int64(), "", 7, "7"),
    ("text", POINT, "", {"x": 1.0, "wkb": None, 'na"me': "n"}, '{"x":1,"wkb":null,"na\\"me":"n"}'),
    ("inet", pa.string(), "", "10.0.0.1/8", "10.0.0.1/8"),
    ("uuid", pa.string(), "", "11111111-1111-1111-1111-111111111111", "11111111-1111-1111-1111-111111111111"),
    ("json", pa.string(), "", '{"a" : 1}', '{"a" : 1}'),
    ("jsonb", pa.list_(pa.int32()), "", [1, 2], "[1, 2]"),
    ("mirror.mood", pa.string(), "", "happy", "happy"),
    ("mirror.small", pa.int32(), "", 5, "5"),
    ("timestamp(3)", US, "", datetime(2024, 1, 1, 0, 0, 0, 123000), "2024-01-01 00:00:00.123"),
    ("int8[]", pa.list_(pa.int32()), "", [1, None], "{1,NULL}"),
    ("int4range", pa.string(), "", "[1,5)", "[1,5)"),
    ("bigint GENERATED BY DEFAULT AS IDENTITY", pa.int64(), "", 7, "7"),
]
PREPARED = """
CREATE SCHEMA mirror; CREATE TYPE mirror.mood AS ENUM ('sad','happy'); CREATE DOMAIN mirror.small AS int CHECK (value < 10);
"""


@pytest.mark.parametrize("case", EXISTING, ids=lambda case: case[0])
def test_existing_column_keeps_its_type(emptied_dsn: str, case: tuple) -> None:
    """Other columns stay unchanged, and bookkeeping columns are added."""
    kind, arrow, source_type, value, text = case
    fetch_rows(emptied_dsn, f"{PREPARED} CREATE TABLE mirror.items (more int DEFAULT 5, v {kind}, id bigint PRIMARY KEY)")
    with open_sink(emptied_dsn) as sink:
        feed = LaneWrites(make_table({"id": pa.int64(), "v": arrow}, v=source_type))
        apply_write(sink, feed.write({"id": 1, "v": value}))
        assert apply_write(sink, feed.write({"id": 1, "_unsent": ["v"]})).counts.applied == 1
    assert fetch_rows(emptied_dsn, "SELECT v::text, more, _event_id FROM mirror.items") == [
        (text, 5, "cdc.public.items-0-1")
    ]


@pytest.mark.parametrize(
    ("kind", "arrow", "value", "reason"),
    [
        ("int4", pa.int64(), 2**31, "int32"),
        ("int4", pa.decimal128(10, 2), Decimal("1.5"), "int32"),
        ("numeric(4,2)", pa.decimal128(10, 4), Decimal("1.2345"), "decimal128(4, 2)"),
        ("timestamp(0)", US, datetime(2024, 1, 1, 0, 0, 0, 1), "timestamp[s]"),
        ("varchar(3)", pa.string(), "abc ", "3 characters"),
        ("mirror.small", pa.int32(), 50, "small_check"),
        ("mirror.mood", pa.string(), "angry", "invalid text representation"),
        ("bit(3)", pa.string(), "10101", "string data length mismatch"),
    ],
)
def test_unconvertible_values_are_rejected(
    emptied_dsn: str, kind: str, arrow: pa.DataType, value: object, reason: str
) -> None:
    fetch_rows(emptied_dsn, f"{PREPARED} CREATE TABLE mirror.items (id bigint PRIMARY KEY, v {kind})")
    rejects = CollectedRejects()
    with open_sink(emptied_dsn) as sink:
        counts = apply_write(
            sink, LaneWrites(make_table({"id": pa.int64(), "v": arrow})).write({"id": 1, "v": value}, {"id": 2}), rejects
        ).counts
    assert (counts.applied, counts.rejected) == (1, 1)
    assert reason in rejects[0][2]
    assert Reject.parse(rejects[0][2]).code == "OUT_OF_RANGE"


@pytest.mark.parametrize(
    ("kind", "arrow"),
    [
        ("int4", pa.string()),
        ("real", pa.float64()),
        ("double precision", pa.decimal128(10, 2)),
        ("numeric(10,2)", pa.float64()),
        ("text", pa.binary()),
        ("bytea", pa.string()),
        ("date", US),
        ("boolean", pa.int16()),
        ("uuid", pa.int64()),
        ("money", pa.decimal128(10, 2)),
        ("int4[]", pa.list_(pa.string())),
        ("name", pa.string()),
        ("bigint GENERATED ALWAYS AS (1) STORED", pa.int64()),
        ("bigint GENERATED ALWAYS AS IDENTITY", pa.int64()),
    ],
)
def test_column_of_an_unsuitable_type_is_refused(emptied_dsn: str, kind: str, arrow: pa.DataType) -> None:
    fetch_rows(emptied_dsn, f"CREATE SCHEMA mirror; CREATE TABLE mirror.items (id bigint PRIMARY KEY, v {kind})")
    feed = LaneWrites(make_table({"id": pa.int64(), "v": arrow}))
    with open_sink(emptied_dsn) as sink, pytest.raises(Fatal, match="column 'v'") as error:
        sink.prepare(feed.lane, feed.plan)
    assert error.value.next_step


def test_identity_key_works_and_a_missing_index_is_a_warning(emptied_dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    """An identity key gets the source's value. A table without an index on its key works, with a warning. An index of some
    rows is none, and hides no other."""
    fetch_rows(
        emptied_dsn,
        "CREATE SCHEMA mirror; CREATE TABLE mirror.b (id bigint);"
        "CREATE TABLE mirror.a (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);"
        "CREATE TABLE mirror.c (id bigint, v text); CREATE INDEX c1 ON mirror.c (v) WHERE v <> '';"
        "CREATE UNIQUE INDEX c2 ON mirror.c (id);"
        "CREATE TABLE mirror.d (id bigint, v text); CREATE UNIQUE INDEX d1 ON mirror.d (id) WHERE v = '';"
        "CREATE INDEX d2 ON mirror.d (id)",
    )
    with open_sink(emptied_dsn) as sink:
        for into in ("a", "b", "c", "d"):
            feed = LaneWrites(make_table({"id": pa.int64(), "v": pa.string()}), make_pg_lane(into))
            apply_write(sink, feed.write({"id": 5, "v": "x"}))
            apply_write(sink, feed.write({"id": 5, "v": "y"}, {"id": 6, "v": "z"}))
            assert sink.features.reader.read(into, where="id = 5")["v"].to_pylist() == ["y"]
    warned = [into for into in ("a", "b", "c", "d") if f"mirror.{into} has no unique index" in caplog.text]
    assert warned == ["b", "d"]


def test_existing_rows_are_older_than_every_change(emptied_dsn: str) -> None:
    """A truncate deletes them too."""
    fetch_rows(
        emptied_dsn,
        "CREATE SCHEMA mirror; CREATE TABLE mirror.items (id bigint PRIMARY KEY, v text);"
        "INSERT INTO mirror.items VALUES (1, 'old'), (2, 'old')",
    )
    feed = LaneWrites(make_table({"id": pa.int64(), "v": pa.string()}))
    with open_sink(emptied_dsn) as sink:
        apply_write(sink, feed.write({"id": 1, "v": "new"}))
        assert fetch_rows(emptied_dsn, "SELECT id, v FROM mirror.items ORDER BY id") == [(1, "new"), (2, "old")]
        apply_write(sink, feed.write({"_op": "t"}, {"id": 3, "v": "after"}))
        assert fetch_rows(emptied_dsn, "SELECT id FROM mirror.items") == [(3,)]
