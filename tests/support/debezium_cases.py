"""Recorded and documented events of every database that Debezium reads, and the resulting tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paths import GOLDEN

ARCHIVES = GOLDEN / "decoders" / "debezium"
Row = tuple[Any, ...]
PEOPLE = {"first_name": "string", "last_name": "string", "email": "string"}
PRODUCTS = {"id": "int64", "name": "string", "description": "string", "weight": "double"}
SMALL = {"schema": {"id": "int64", "v": "int64"}, "keys": ["id"]}


@dataclass(frozen=True)
class Case:
    """A folder of recorded topics, and for one table the checked columns and the final rows. `told`: keys of the
    table's entry. `source`: keys of its source. `into`: the target's name."""

    archive: str
    table: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    told: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    rejected: int = 0

    @property
    def into(self) -> str:
        return f"{self.archive}_{self.table.rpartition('.')[2]}".replace("-", "_").lower()


IN_RISINGWAVE: tuple[Row, ...] = (
    (1001, "Sally", "Thomas", "sally.thomas@acme.com"), (1002, "George", "Bailey", "gbailey@foobar.com"),
    (1003, "Edward", "Walker", "ed@walker.com"), (1004, "Anne1", "Kretchmar", "annek@noanswer.org"),
    (1005, "add", "add2", "add"),
)  # fmt: skip
IN_MONGODB = (*IN_RISINGWAVE[:3], (1004, "Anne", "Kretchmar", "annek@noanswer.org"))
IN_SEATUNNEL: tuple[Row, ...] = (
    (101, "scooter", "Small 2-wheel scooter", 3.14), (102, "car battery", "12V car battery", 8.1),
    (103, "12-pack drill bits", "12-pack of drill bits with sizes ranging from #40 to #3", 0.8),
    (104, "hammer", "12oz carpenter's hammer", 0.75), (105, "hammer", "14oz carpenter's hammer", 0.875),
    (106, "hammer", "18oz carpenter hammer", 1.0), (107, "rocks", "box of assorted rocks", 5.1),
    (108, "jacket", "water resistent black wind breaker", 0.1), (109, "spare tire", "24 inch spare tire", 22.2),
    (110, "jacket", "new water resistent white wind breaker", 0.5),
)  # fmt: skip
IN_PAIMON: tuple[Row, ...] = (
    (102, "car battery", "12V car battery", 8.1, None, None),
    (103, "12-pack drill bits", "12-pack of drill bits with sizes ranging from #40 to #3", 0.8, 18, None),
    (104, "hammer", "12oz carpenter's hammer", 0.75, 24, None),
    (105, "hammer", "14oz carpenter's hammer", 0.875, None, "Beijing"),
    (107, "rocks", "box of assorted rocks", 5.3, None, None),
)  # fmt: skip
OF_PEOPLE, OF_PRODUCTS = ("first_name", "last_name", "email"), ("id", "name", "description", "weight")
DOCUMENTS = {"schema": {"_id": "int64", **PEOPLE}}
CASES = (
    Case("risingwave", "inventory.customers", ("id", *OF_PEOPLE), IN_RISINGWAVE, {"keys": ["id"]}),
    Case("risingwave-schemaless", "inventory.customers", ("id", *OF_PEOPLE), IN_RISINGWAVE,
         {"keys": ["id"], "schema": {"id": "int64", **PEOPLE}}),
    Case("risingwave-mongodb", "inventory.customers", ("_id", *OF_PEOPLE), IN_MONGODB, {"keys": ["_id"], **DOCUMENTS}),
    Case("seatunnel", "inventory.products", OF_PRODUCTS, IN_SEATUNNEL, {"keys": ["id"], "schema": PRODUCTS}),
    Case("seatunnel-all-types", "mysql_cdc.mysql_cdc_e2e_source_table", ("id", "f_year", "f_datetime", "f_real"),
         ((1, 2022, "2022-04-27 14:30:00", 12.345), (2, 2013, "2022-04-27 14:30:00", 112.345),
          (3, 2021, "2022-04-27 14:30:00", 112.345)), {"keys": ["id"], "tombstones": "delete"}),
    Case("paimon", "test.product", (*OF_PRODUCTS, "age", "address"), IN_PAIMON,
         {"keys": ["id"], "sequence_by": ["id"], "schema": {**PRODUCTS, "age": "int64", "address": "string"}}),
    Case("mysql", "inventory.customers", ("id", *OF_PEOPLE), ()),
    Case("sqlserver", "dbo.customers", ("id", *OF_PEOPLE), ()),
    Case("oracle", "DEBEZIUM.CUSTOMERS", ("ID", "FIRST_NAME", "EMAIL"), ((1004, "Anne", "anne@example.com"),)),
    Case("mongodb", "inventory.customers", ("_id", *OF_PEOPLE), (), DOCUMENTS),
    Case("mariadb", "shop.customers", ("id", "name", "credit", "loyalty"),
         ((1, "Ada L.", "0.01", 7), (2, "Émile ☃ 🎉", None, None))),
    Case("mariadb", "shop.orders", ("id", "total"), ((1, "19.98"), (10, "5.00"))),
    Case("mariadb", "shop.order_items", ("order_id", "line_no", "qty"), ((1, 1, 2), (10, 2, 2))),
    Case("mariadb", "shop.trunc_me", ("id", "v"), ((2, "b"),)),
    Case("mariadb", "shop.nopk", ("a", "b", "_cdc_op"),
         ((1, "x", "r"), (1, "x", "r"), (1, "y", "d"), (1, "y", "u"), (1, "y", "u")), {"policy": "append"}),
    Case("postgres-flattened", "public.orders", ("id", "status", "total"), ((1, "shipped", 19.98), (2, "paid", 100.0),
         (10, "paid", 29.97)), {"tombstones": "ignore", "schema": {"id": "int64", "status": "string", "total": "double"}},
         {"flattened": True}),
    Case("postgres-flattened", "public.trunc_me", ("id", "v"), ((3, "after truncate"),),
         {"tombstones": "ignore", "schema": {"id": "int64", "v": "string"}}, {"flattened": True}),
    Case("postgres-flattened", "public.toasty", ("id", "small"), (),
         {"tombstones": "ignore", "schema": {"id": "int32", "small": "int32", "tx": "string"}}, {"flattened": True}),
    Case("five-updates", "shop.t", ("id", "v"), ((1, 65),), SMALL),
    Case("insert-and-delete", "shop.t", ("id", "v"), (), SMALL),
    Case("insert-delete-insert", "shop.t", ("id", "v"), ((1, 2),), SMALL),
    Case("next-file", "shop.t", ("id", "v"), ((1, 2),), SMALL),
    Case("read-while-changed", "shop.t", ("id", "v"), ((1, 11), (2, 21), (3, 30)), SMALL),
)  # fmt: skip
ON_SPARK = frozenset(
    (
        "risingwave-mongodb",
        "seatunnel-all-types",
        "paimon",
        "sqlserver",
        "oracle",
        "read-while-changed",
        "postgres-flattened",
    )
)
"""Archives of each kind for Spark. A Spark stream is slow, so the other archives run in a separate case."""


def make_event(
    op: str, row: int, v: int, pos: int, *, file: str = "b.000002", ms: int = 1000, snapshot: str = "false"
) -> str:
    """A change of MySQL's `shop.t`."""
    image = {"id": row, "v": v}
    source = {"connector": "mysql", "name": "s", "ts_ms": ms, "snapshot": snapshot, "db": "shop", "table": "t", "file": file,
              "pos": pos, "row": 0, "server_id": 1}  # fmt: skip
    before, after = (image, None) if op == "d" else (None, image)
    return json.dumps({"before": before, "after": after, "source": source, "op": op, "ts_ms": ms})


WRITTEN: Mapping[str, tuple[str, ...]] = {
    # https://github.com/apache/hudi/issues/1803: the last of several updates in one second wins.
    "five-updates": tuple(
        make_event("u", 1, v, 10 + v, ms=ms) for v, ms in ((61, 47000), (62, 48000), *((v, 52000) for v in (63, 64, 65)))
    ),
    # https://github.com/apache/hudi/issues/3266
    "insert-and-delete": (make_event("c", 1, 1, 100), make_event("d", 1, 1, 200)),
    # https://github.com/memiiso/debezium-server-iceberg/issues/661
    "insert-delete-insert": (make_event("c", 1, 1, 100), make_event("d", 1, 1, 200), make_event("c", 1, 2, 300)),
    # https://github.com/apache/hudi/pull/13800: a late record does not win by its higher position in an earlier file.
    "next-file": (make_event("u", 1, 2, 100, file="b.000002"), make_event("u", 1, 1, 200, file="b.000001")),
    # An incremental snapshot. Its window closes at the change of row 1. Row 2 changed before, and row 3 was only read.
    "read-while-changed": (
        make_event("u", 2, 21, 150), make_event("r", 1, 10, 200, snapshot="incremental"),
        make_event("r", 3, 30, 200, snapshot="incremental"), make_event("u", 1, 11, 200),
        make_event("r", 2, 21, 200, snapshot="incremental"), make_event("r", 1, 10, 200, snapshot="incremental"),
    ),
}  # fmt: skip


def list_archives(folder: Path) -> Iterable[tuple[str, Path]]:
    """Every archive by its name. Archives without a recording are written into `folder`."""
    for name, values in WRITTEN.items():
        (folder / name).mkdir(parents=True)
        known = {"topic": "s.shop.t", "partition": 0, "timestamp": None, "headers": [], "key": None}
        lines = (json.dumps({**known, "offset": n, "value": value}) + "\n" for n, value in enumerate(values))
        (folder / name / "t.jsonl").write_text("".join(lines))
        yield name, folder / name
    for name in {case.archive for case in CASES} - set(WRITTEN):
        yield name, ARCHIVES / name
