"""The decoder of DTS keeps the promises of `ports.decoder`, over values of every branch."""

import pytest
from support.dts_mutations import alter_record
from support.dts_records import (
    BIGINT,
    DATE,
    DATETIME,
    DECIMAL,
    DOUBLE,
    GEOMETRY,
    JSON,
    SAMPLES,
    TEXT,
    TIME,
    TIMESTAMP,
    VARCHAR,
    make_datetime,
    make_dts_frame,
    make_float,
    make_integer,
    make_record,
    make_text,
    make_value,
)  # fmt: skip

from adapters.decoders.dts_avro import DtsAvroDecoder
from replicator.testing.decoder_contract import DecoderContract

INFERRED = {
    "id": BIGINT, "name": VARCHAR, "note": TEXT, "far": DOUBLE, "seen": TIMESTAMP, "day": DATE, "at": DATETIME, "t": TIME,
    "doc": JSON, "shape": GEOMETRY,
}  # fmt: skip
DECLARED = {
    **dict.fromkeys(("name", "note", "doc"), "string"),
    **{"id": "int64", "far": "double", "seen": "timestamp[us, UTC]", "day": "date32", "at": "timestamp[us]"},
    **{"t": "time64[us]", "shape": "binary", "price": "decimal(10,2)", "zoned": "timestamp[us, UTC]", "raw": "binary"},
    "wkt": "string",
}


def row(n, declared):
    said = [
        make_integer(n),
        make_text("é☃" * n),
        make_text("è".encode("latin-1"), "latin1"),
        make_float(n / 3),
        make_value("Timestamp", timestamp=1_700_000_000, millis=123_456),
        make_datetime(2024, 2, 29),
        make_datetime(2024, 2, 29, 23, 59, 59, 999_999),
        make_datetime(hour=1, minute=2, second=n),
        make_value("TextObject", type="JSON", value='{"a": 1}'),
        make_value("BinaryGeometry", type="POINT", value=b"\x01\x02"),
    ]
    if declared:
        zoned = {"year": 2024, "month": 2, "day": 29, "hour": 1, "minute": 0, "second": 0}
        said += [
            make_value("Decimal", value="12.50", precision=10, scale=2),
            make_value("TimestampWithTimeZone", value=zoned, timezone="GMT+8:00"),
            make_value("BinaryObject", type="BLOB", value=b"\x00\xff"),
            make_value("TextGeometry", type="POINT", value="POINT(1 2)"),
        ]
    return [said[0], *(None if (n + i) % 5 == 0 else one for i, one in enumerate(said[1:]))]


def sample(n, declared):
    kind = ("INSERT", "UPDATE", "DELETE", "INIT", "BEGIN", "DDL")[n % 6]
    if kind in ("BEGIN", "DDL"):
        return make_record(kind, after="drop table x" if kind == "DDL" else None, objectName="mydb")
    fields = INFERRED | ({"price": DECIMAL, "zoned": 0, "raw": TEXT, "wkt": GEOMETRY} if declared else {})
    before, after = row(n + n % 2, declared), row(n, declared)
    after[2] = after[2] if n % 4 else "NONE"
    return make_record(
        kind, fields, before if kind in ("UPDATE", "DELETE") else None, None if kind == "DELETE" else after, id=1_700_000 + n
    )


class TestDtsDecoder(DecoderContract):
    @pytest.fixture(autouse=True, params=["inferred", "declared"])
    def types(self, request):
        self.declared = request.param == "declared"

    def new_decoder(self):
        return DtsAvroDecoder({"schema": {"mydb.t1": DECLARED}} if self.declared else {})

    def samples(self):
        return make_dts_frame(*(sample(n, self.declared) for n in range(18)))

    def make_recorded(self):
        """Of the same table with other columns, so only where these are not declared."""
        return make_dts_frame(*([] if self.declared else [path.read_bytes() for path in sorted(SAMPLES.glob("*.bin"))]))

    def mutate_record(self, value, rng):
        return alter_record(value, rng)

    def test_samples_decode_without_rejects(self):
        for table, run in self.list_slices(self.new_decoder(), self.samples()):
            assert set(self.new_decoder().decode(run, table)["_error"].to_pylist()) == {None}
