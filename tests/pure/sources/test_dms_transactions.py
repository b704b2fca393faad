"""Transaction files of DMS: rows of several tables in one file."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support.dms_folder import set_old_time
from test_dms_folders import follow, put, read

from adapters.decoders.common.row_files import CsvDialect
from adapters.decoders.dms_csv import DmsCsvDecoder
from adapters.sources.files.dms import DmsFilesSource, TransactionRows, find_table, parse_name
from replicator.domain.change import RAW
from replicator.domain.errors import DataLoss
from replicator.domain.position import Position
from replicator.domain.table import Column, TableSpec

TXN = "CDC_TXN-20211017194324349.csv"
LATER = "CDC_TXN-20211018000000000.csv"


@pytest.fixture
def bucket(tmp_path):
    return tmp_path / "bucket"


def test_file_names(bucket):
    name = parse_name(bucket / TXN)
    assert (name.kind, name.first, name.of_transactions) == ("cdc", 1634499804349 << 21, True)
    assert find_table(bucket / TXN) == ""
    assert parse_name(bucket / "CDC_TXN-20211017-194324349.csv.gz").first == name.first


@pytest.mark.parametrize(
    ("row", "csv", "table", "rest"),
    [
        (b"I,users,public,1,a", {}, "public.users", b"I,1,a"),
        (b'"U","odd ""name"", x","pub",1,"a,b"', {}, 'pub.odd "name", x', b'"U",1,"a,b"'),
        (b"D;users;public;1;", {"delimiter": ";"}, "public.users", b"D;1;"),
        (b'I,"users,public,1', {"quote": "none"}, 'public."users', b"I,1"),
        ("I,Größe,public,ü".encode(), {}, "public.Größe", "I,ü".encode()),
        (b"I,users,public", {}, "public.users", b"I,"),
    ],
)
def test_rows(row, csv, table, rest):
    assert TransactionRows(CsvDialect.model_validate(csv)).parse_row(row) == (table, rest)


@pytest.mark.parametrize("row", [b"I,users", b"", b'I,"users,public,1', b"I,,public,1", b"I,users,,1", b"I,\xff,public,1"])
def test_invalid_rows_are_rejected(row):
    assert isinstance(TransactionRows(CsvDialect()).parse_row(row), ValueError)


def test_transaction_files_are_read_after_all_full_loads_by_time(bucket):
    put(bucket / "changes", LATER, "U,users,public,1,c\n")
    put(bucket / "changes", TXN, 'I,orders,public,7,"x\ny"\nU,users,public,1,b\nD,users,public,2,\n')
    put(bucket / "public" / "users", "LOAD00000001.csv", "1,a\n2,a\n")
    put(bucket / "public" / "orders", "LOAD00000001.csv", "6,w\n")
    assert read(bucket) == [
        ("public.orders", 1, b"6,w"),
        ("public.users", 1, b"1,a"),
        ("public.users", 2, b"2,a"),
        ("public.orders", 1, b'I,7,"x\ny"'),
        ("public.users", 2, b"U,1,b"),
        ("public.users", 3, b"D,2,"),
        ("public.users", 1, b"U,1,c"),
    ]


def test_transaction_files_have_no_header(bucket):
    """Full loads may have one, DMS writes none into files of transactions: the table's declared columns hold."""
    put(bucket / "public" / "users", "LOAD00000001.csv", "id,name\n1,a\n")
    put(bucket, TXN, "U,users,public,1,b\n")
    source, found = DmsFilesSource({"path": str(bucket), "csv": {"header": True}}), []
    source.run(Position(), lambda batch: found.append(batch.frame), __import__("threading").Event(), once=True)
    spec = TableSpec("public.users", (Column("id", pa.int64()), Column("name", pa.string())), ("id",), 2)
    spelt = {"schema": {spec.name: {"id": "int64", "name": "string"}}, "keys": {spec.name: ["id"]}, "csv": {"header": True}}
    rows = DmsCsvDecoder(spelt).decode(pa.concat_tables(found), spec).to_pylist()
    assert [(r["_op"], r["id"], r["name"], r["_error"]) for r in rows] == [("r", 1, "a", None), ("u", 1, "b", None)]


def test_bad_row_is_rejected_with_file_and_row(bucket):
    put(bucket / "changes", TXN, "I,users,public,1\nnonsense\nI,users,public,2")
    found = read(bucket)
    assert found == [
        ("public.users", 1, b"I,1"),
        (f"archive:changes/{TXN}", 2, b"nonsense"),
        ("public.users", 3, b"I,2"),
    ]
    put(bucket / "changes", TXN, "I,users,public,1\nnonsense")
    assert [values for *_, values in read(bucket)] == [b"I,1", b"nonsense"]


def test_incomplete_file_delays_all_later_files(bucket):
    """A transaction file waits for every full load, and every later file waits for it."""
    put(bucket / "public" / "users", "LOAD00000001.csv", "1,a\n", settled=False)
    put(bucket / "public" / "orders", "LOAD00000001.csv", "6,w\n")
    put(bucket, TXN, "U,orders,public,6,x\n", settled=False)
    put(bucket, LATER, "U,orders,public,6,y\n")
    put(bucket / "public" / "orders", "20211019-000000000.csv", "U,6,z\n")
    seen = []

    def act(found):
        if found == [b"6,w"]:
            set_old_time(bucket / TXN)
            seen.append(1)
        if found == [b"6,w"] and len(seen) > 2:
            set_old_time(bucket / "public" / "users" / "LOAD00000001.csv")
        return len(found) == 5

    assert follow(bucket, act) == [b"6,w", b"1,a", b"U,6,x", b"U,6,y", b"U,6,z"]
    assert len(seen) > 2


def test_late_file_is_data_loss(bucket):
    put(bucket, LATER, "I,users,public,1\n")

    def act(found):
        put(bucket, TXN, "I,users,public,2\n")
        return len(found) > 1

    with pytest.raises(DataLoss, match=rf"{TXN} appeared after later files of transactions"):
        follow(bucket, act)


def test_reason_of_a_reject_has_file_and_row():
    rows = [(1634499804349 << 21) + 3, (10 << 32) + 7, (1634499804349 << 21) + 4]
    values = [b"I,1,2,3", b"x", b"I,1"]
    records = [
        {"topic": "t", "partition": 0, "offset": o, "value": v, "headers": None} for o, v in zip(rows, values, strict=True)
    ]
    spec = TableSpec("t", (Column("id", pa.int64()),), ("id",), 2)
    decoder = DmsCsvDecoder({"schema": {"t": {"id": "int64"}}, "keys": {"t": ["id"]}})
    errors = decoder.decode(pa.Table.from_pylist(records, RAW), spec)["_error"].to_pylist()
    assert errors[0].endswith("expected: 1 or 2 (row 3 of 20211017-194324349)")
    assert errors[1].endswith("(row 7 of LOAD0000000A)") and errors[2] is None
    bad = [{**records[0], "value": b""}]
    assert decoder.route(pa.Table.from_pylist(bad, RAW))["error"][0].as_py().endswith("(row 3 of 20211017-194324349)")
