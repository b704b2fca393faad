"""Log positions of changes, per connector."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from support.debezium_events import (
    ID,
    decode_frame,
    get_error_code,
    make_change_event,
    make_column,
    make_event_key,
    make_raw_records,
)

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from replicator.domain.errors import ConfigProblem
from replicator.domain.policy.policies import plan_for
from replicator.domain.transform.rows import RowTransforms

COLUMNS = [ID, make_column("name", "string")]
ROW = {"id": 1, "name": "a"}


def sequences(*sources: dict[str, Any], op: str = "u", keyed: bool = True, options: Any = None) -> list[Any]:
    """`_seq_1..3` of changes with these source blocks, or the reason code. A block may say another `op`."""
    blocks = [{"sequence": None, "lsn": None, "ts_us": 1, **s} for s in sources]
    values = [make_change_event(COLUMNS, op=s.pop("op", op), after=ROW, source=s) for s in blocks]
    changes = decode_frame(make_raw_records(values, None if keyed else [None] * len(values)), options)
    return [get_error_code(c) or (c["_seq_1"], c["_seq_2"], c["_seq_3"]) for c in changes]


def oracle(**more: Any) -> dict[str, Any]:
    return {"connector": "oracle", "scn": "500", "commit_scn": "900", "txId": "5.6.641"} | more


def test_oracle_is_ordered_by_commit_and_transaction_sequence() -> None:
    found = sequences(oracle(txSeq=7), oracle(txSeq="8"), oracle(scn="501"), oracle(commit_scn="1000", scn="2"))
    assert found == [(900, 7, 1), (900, 8, 1), (900, 0, 3), (1000, 0, 4)]
    assert sequences(oracle(txSeq=7), oracle(txSeq=7), keyed=False) == [(900, 7, 1), (900, 7, 2)]


def test_oracle_snapshot_rows_are_before_later_commits() -> None:
    read, change = sequences(oracle(op="r", commit_scn=None, snapshot="first", txId=None), oracle(commit_scn="501", txSeq=1))
    assert read == (500, 0, 0)
    assert read < change
    window, change = sequences(oracle(op="r", txSeq=4, snapshot="incremental"), oracle(txSeq=4))
    assert window < change


def test_oracle_transaction_id_as_text_is_kept() -> None:
    (change,) = decode_frame(make_raw_records([make_change_event(COLUMNS, after=ROW, source=oracle(sequence=None))]))
    assert (change["_tx"], change["_error"]) == ("5.6.641", None)


@pytest.mark.parametrize("more", [{"commit_scn": "x"}, {"commit_scn": "-1"}, {"commit_scn": str(2**56)},
                                  {"commit_scn": str(2**70)}, {"txSeq": -1}, {"txSeq": "1.5"}])  # fmt: skip
def test_oracle_without_scn_is_rejected(more: dict[str, Any]) -> None:
    assert sequences(oracle(), oracle(**more), oracle()) == [(900, 0, 1), "NO_SEQUENCE", (900, 0, 3)]


def sqlserver(commit: str | None, change: str | None, serial: Any = 1, **more: Any) -> dict[str, Any]:
    return {"connector": "sqlserver", "commit_lsn": commit, "change_lsn": change, "event_serial_no": serial} | more


IN_ORDER = [
    sqlserver("00000025:00000d98:00a2", None, None, op="r", snapshot="true"),
    sqlserver("00000025:00000d98:00a2", "00000001:00000000:0001"),
    sqlserver("00000027:00000758:0005", "00000027:00000758:0003", "1"),
    sqlserver("00000027:00000758:0005", "00000027:00000758:0003", 2),
    sqlserver("00000027:00000758:0005", "00000027:00000758:0004"),
    sqlserver("00000027:00000758:0006", "00000027:00000100:0001"),
    sqlserver("00000027:00000ac0:0001", "00000026:00000100:0001"),
    sqlserver("0000002A:00000001:0001", "00000026:00000100:0001"),
    sqlserver("7fffffff:ffffffff:ffff", "7fffffff:ffffffff:fffe", 2**22 - 1),
    sqlserver("7fffffff:ffffffff:ffff", "7fffffff:ffffffff:ffff", 1),
]


def test_sqlserver_is_ordered_by_commit_change_and_serial_number() -> None:
    found = sequences(*IN_ORDER)
    assert found == sorted(set(found))
    assert all(0 <= element < 1 << 63 for elements in found for element in elements)
    assert sequences(*IN_ORDER, options={"epoch": 2})[0] > found[-1]


def test_sqlserver_snapshot_rows_are_before_the_changes() -> None:
    at = ("00000027:00000758:0005", "00000027:00000758:0003")
    none, zero, window, change = sequences(
        sqlserver(None, None, None, op="r", snapshot="true"), sqlserver("00", "NULL", None, op="r", snapshot="true"),
        sqlserver(*at, 1, op="r", snapshot="incremental"), sqlserver(*at, 1),
    )  # fmt: skip
    assert none == zero == (0, 0, 0)
    assert zero < window < change
    alike = sequences(*[sqlserver(at[0], None, None, op="r", snapshot="true")] * 2, keyed=False)
    assert len(set(alike)) == 2


@pytest.mark.parametrize("source", [
    sqlserver("27:758:5", "00000027:00000758:0003"), sqlserver("00000027:00000758:0005", None),
    sqlserver("00000027:00000758:0005", "00000027:00000758:0003", 2**22), sqlserver("00", "00"),
    sqlserver("00000027:00000758:0005", "00000027:00000758:0003", -1),
])  # fmt: skip
def test_sqlserver_without_a_position_is_rejected(source: dict[str, Any]) -> None:
    assert sequences(IN_ORDER[2], source)[1] == "NO_SEQUENCE"


def mongodb(seconds: int, ordinal: int | None, version: str | None = "3.3.1.Final", **more: Any) -> dict[str, Any]:
    return {"connector": "mongodb", "version": version, "ts_ms": seconds * 1000, "ts_us": None, "ord": ordinal} | more


def test_mongodb_is_ordered_by_oplog_time() -> None:
    found = sequences(mongodb(99, 7), mongodb(100, 2), mongodb(100, 10), mongodb(100, 10), mongodb(101, 1))
    assert found == [(99, 7, 0), (100, 2, 1), (100, 10, 2), (100, 10, 3), (101, 1, 4)]
    assert sequences(mongodb(99, 7), mongodb(99, None)) == [(99, 7, 0), "NO_SEQUENCE"]


@pytest.mark.parametrize("version", ["3.4.0.Final", "3.7.0-SNAPSHOT", "10.0.0.Final", None, "nightly"])
def test_mongodb_with_wall_clock_times_is_ordered_by_offset(version: str | None) -> None:
    old, late, early = sequences(mongodb(100, 500), mongodb(100, 500, version), mongodb(99, 1, version))
    assert (late, early) == ((1 << 40, 0, 1), (1 << 40, 0, 2))
    assert old < late < early


@pytest.mark.parametrize("source", [
    {"connector": "postgresql", "sequence": '["90","100"]', "lsn": 100}, {"connector": "postgresql", "lsn": 100},
    {"connector": "mysql", "db": "public", "file": "bin.000003", "pos": 154, "row": 0},
    {"connector": "mariadb", "db": "public", "file": "bin.000003", "pos": 154, "row": 3},
])  # fmt: skip
def test_incremental_snapshot_row_is_before_the_change_at_its_window(
    source: dict[str, Any],
) -> None:
    read, change = sequences({**source, "op": "r", "snapshot": "incremental"}, source)
    assert read < change
    before = {**source, **({"lsn": 60, "sequence": None} if "lsn" in source else {"pos": 100})}
    assert sequences(before)[0] < read


UNPLACED: list[dict[str, Any]] = [
    {"connector": "db2", "change_lsn": "00000027:00000758:0003"}, {"connector": "vitess", "vgtid": "x"}, {"connector": None},
    {"connector": "postgresql"}, {"connector": "mysql", "file": "", "pos": 0}, {"connector": "oracle"},
    {"connector": "mongodb"}, {"connector": "sqlserver"},
]  # fmt: skip


@pytest.mark.parametrize("source", UNPLACED)
def test_table_without_log_positions_needs_sequence_columns(source: dict[str, Any]) -> None:
    block = {"sequence": None, "lsn": None, **source}
    frame = make_raw_records(
        [
            make_change_event(COLUMNS, after=ROW, source=block),
            make_change_event(COLUMNS, op="u", after=ROW, source=block),
            b"{",
        ]
    )
    decoder = DebeziumJsonDecoder({})
    route = decoder.route(frame).to_pylist()[0]
    spec = decoder.learn(frame, route["table"], route["fingerprint"])
    assert (spec.unordered, spec.counted, spec.sequence) == (True, False, 3)
    for policy in ("scd1", "append", "scd2"):
        with pytest.raises(ConfigProblem, match=r"table public\.t contain no position .*`sequence_by: "):
            plan_for(policy, spec)
    assert plan_for("scd1", spec, row_transforms=RowTransforms(sequence_by=("name",))).table.sequence == 4
    changes = decoder.decode(frame.slice(0, 2), spec).to_pylist()
    assert [(c["_seq_1"], c["_seq_2"], c["_seq_3"], c["_error"]) for c in changes] == [(0, 0, 0, None), (0, 0, 1, None)]


def test_records_without_position_are_rejected_if_one_has_a_position() -> None:
    nowhere = {"sequence": None, "lsn": None}
    frame = make_raw_records([make_change_event(COLUMNS, after=ROW, source=nowhere), make_change_event(COLUMNS, after=ROW)])
    decoder = DebeziumJsonDecoder({})
    spec = decoder.learn(frame, "public.t", decoder.route(frame)["fingerprint"][0].as_py())
    assert not spec.unordered
    assert [get_error_code(c) for c in decoder.decode(frame, spec).to_pylist()] == ["NO_SEQUENCE", None]


def test_deleting_tombstones_order_a_table_without_log_positions() -> None:
    frame = make_raw_records(
        [make_change_event(COLUMNS, after=ROW, source={"connector": "db2"}), None], [make_event_key(id=1)] * 2
    )
    decoder = DebeziumJsonDecoder({"tombstones": "delete"})
    spec = decoder.learn(frame, "public.t", decoder.route(frame)["fingerprint"][0].as_py())
    assert (spec.unordered, spec.sequence) == (False, 1)
    assert decoder.decode(frame, spec)["_seq_1"].to_pylist() == [0, 1]
    assert pa.types.is_int64(decoder.decode(frame, spec)["_seq_1"].type)
