"""The table `sales` of a MySQL database as DTS sends it: full load, changes, and the expected rows."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

from support.dts_records import (
    BIGINT,
    DATE,
    DOUBLE,
    VARCHAR,
    encode_record,
    make_datetime,
    make_float,
    make_integer,
    make_record,
    make_text,
)

FIELDS = {"id": BIGINT, "date": DATE, "name": VARCHAR, "sales": DOUBLE}
LOADED = [
    (1, date(2019, 11, 11), "Robert", 323.0),
    (2, date(2019, 11, 11), "Lee", 500.0),
    (3, date(2019, 11, 12), "Robert", 136.0),
    (4, date(2019, 11, 13), "Lee", 211.0),
]
RESULT = [
    (2, date(2019, 11, 11), "Lee", Decimal("175.00")),
    (3, date(2019, 11, 12), "Robert", Decimal("136.00")),
    (4, date(2019, 11, 13), "Lee", Decimal("211.00")),
    (5, date(2019, 11, 14), "Robert", Decimal("233.00")),
]
PRINTED = [
    (
        number, '{"sourceType": "MySQL", "version": "0.0.0.0"}', "delta_cdc.sales", "INIT", "1970-01-01 08:00:00", "{}",
        '["id","date","name","sales"]', "{}", f'{{"sales":"{sales}","date":"{day}","name":"{name}","id":"{number}"}}',
    )
    for number, day, name, sales in LOADED
]  # fmt: skip
"""Times as shown in Asia/Shanghai."""
NAMES = (
    "recordID", "source", "dbTable", "recordType", "recordTimestamp", "extraTags", "fields", "beforeImages", "afterImages"
)  # fmt: skip


def make_image(row: tuple) -> list[Any]:
    number, day, name, sales = row
    return [make_integer(number), make_datetime(day.year, day.month, day.day), make_text(name), make_float(sales)]


def make_message(number: int, kind: str, before: tuple | None, after: tuple | None, *, keyed: bool = True) -> bytes:
    return encode_record(
        make_record(
            kind,
            FIELDS,
            before and make_image(before),
            after and make_image(after),
            id=number,
            objectName="delta_cdc.sales",
            tags={"pk_uk_info": '{"PRIMARY":["id"]}'} if keyed else {},
            source={"sourceType": "MySQL", "version": "0.0.0.0"},
            sourceTimestamp=0 if kind == "INIT" else 1_574_000_000 + number,
        )
    )


def make_loaded_messages() -> list[bytes]:
    """Messages without tags: the configuration declares the key."""
    return [make_message(row[0], "INIT", None, row, keyed=False) for row in LOADED]


def make_changed_messages() -> list[bytes]:
    two, new = LOADED[1], (5, date(2019, 11, 14), "Robert", 233.0)
    return [
        make_message(11, "DELETE", LOADED[0], None, keyed=False),
        make_message(12, "UPDATE", two, (*two[:3], 150.0), keyed=False),
        make_message(13, "UPDATE", (*two[:3], 150.0), (*two[:3], 175.0), keyed=False),
        make_message(14, "INSERT", None, new, keyed=False),
    ]
