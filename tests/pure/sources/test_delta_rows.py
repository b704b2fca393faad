"""The rows of a Delta table as a source: every kind of commit, and the position of each row."""

from __future__ import annotations

import json
import math
import random
import shutil
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.rows_of_tables import apply_changes, decode_changes, read_records, read_table_rows
from support.table_of_rows import FEED, VERSION, WHOLE

from adapters.decoders.rows import RowsDecoder
from adapters.sources.delta import delta_source, delta_source_check
from adapters.sources.delta_table.splits import first_change_offset, first_whole_offset, parse_offset
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Fatal
from replicator.domain.position import Position, TopicPartition

PLACE = TopicPartition("items", 0)
ELSEWHERE = TopicPartition("other", 0)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "items")


def source(path, changes="feed", **options):
    return delta_source({"format": "rows", "path": path, "changes": changes, **options})


def payloads(frame: pa.Table) -> list[dict[str, Any]]:
    return [json.loads(value)["payload"] for value in frame["value"].to_pylist()]


def items(*rows: tuple[int, str], **more: Any) -> pa.Table:
    return pa.table({"id": pa.array([r[0] for r in rows], pa.int64()), "v": [r[1] for r in rows], **more})


def create(path: str, *rows: tuple[int, str], **options: Any) -> None:
    write_deltalake(path, items(*rows), configuration=FEED, **options)


def test_everything_is_one_batch_or_none(path: str) -> None:
    """The whole table first, and later changes over several commits."""
    create(path, (1, "a"), (2, "b"))
    for number in (3, 4):
        write_deltalake(path, items((number, "c")), mode="append")
    start = Position({PLACE: first_whole_offset(0)})

    def run(**options: Any) -> list[int]:
        found: list[Any] = []
        source(path, batch_records=1, **options).run(start, found.append, threading.Event(), once=True)
        return [batch.records for batch in found if batch.records]

    assert run() == [1, 1, 1, 1]
    assert run(mode="batch") == [4]
    with pytest.raises(Fatal, match="items have more than the 10 bytes"):
        run(mode="batch", batch_bytes=10)


# -- what commits mean -------------------------------------------------------------------------------------------------


def act(rng: random.Random, path: str, by: list[str]) -> None:
    """One commit of a random kind; keys stay unique."""
    table, ids = DeltaTable(path), sorted(read_table_rows(path))
    new = [(max([*ids, 0]) + n, rng.choice("abc")) for n in range(1, rng.randint(2, 5))]
    some = [i for i in ids if rng.random() < 0.5] or ids[:1] or [0]
    among = f"id in ({', '.join(map(str, some))})"
    match rng.randrange(7):
        case 0:
            write_deltalake(path, items(*new), mode="append", schema_mode="merge")
        case 1:
            table.update(predicate=among, updates={"v": f"'{rng.choice('abcd')}'"})
        case 2:
            table.delete(among)
        case 3:
            table.update(predicate=among, updates={"id": "id + 1"} if len(ids) == 1 else {"id": "-id", "v": "'moved'"})
        case 4:
            values = items(*[(i, rng.choice("xyz")) for i in some], *new)
            merge = table.merge(values, "t.id = s.id", source_alias="s", target_alias="t")
            merge.when_matched_update({"v": "s.v"}).when_not_matched_insert({"id": "s.id", "v": "s.v"}).execute()
        case 5:
            table.optimize.compact()
        case 6:
            write_deltalake(path, items(*[(i, "anew") for i in some], *new), mode="overwrite")


@pytest.mark.slow
@pytest.mark.parametrize("by", [[], ["v"]])
@pytest.mark.parametrize("seed", range(6))
def test_changes_of_the_feed_give_the_table(path, seed, by):
    """Whatever was committed, however batches are split, from any version, also after the whole table."""
    rng = random.Random(seed)
    create(path, (1, "a"), (2, "b"), (3, "c"), partition_by=by or None)
    for _ in range(8):
        act(rng, path, by)
    cut = rng.choice([1, 2, 5, 1000])
    one = source(path, batch_records=cut)
    whole = read_records(one, one.beginning())
    assert apply_changes(decode_changes(whole)) == read_table_rows(path)
    assert len(set(whole["offset"].to_pylist())) == whole.num_rows
    version = rng.randrange(DeltaTable(path).version())
    later = read_records(one, {PLACE: version * VERSION + WHOLE})
    assert apply_changes(decode_changes(later)) == read_table_rows(path)
    middle = rng.choice(whole["offset"].to_pylist())
    assert read_records(source(path), {PLACE: middle}).equals(
        whole.filter(pa.array([o >= middle for o in whole["offset"].to_pylist()]))
    )


def test_rows_that_exchange_their_keys(path):
    """In one commit, in any order and any pairs of the feed."""
    create(path, (1, "one"), (2, "two"), (3, "three"))
    DeltaTable(path).update(updates={"id": "case when id = 1 then 2 when id = 2 then 1 else 30 end", "v": "concat(v, '!')"})
    assert read_table_rows(path)[2]["v"] == "one!"
    changes = decode_changes(read_records(source(path), source(path).beginning()))
    assert apply_changes(changes) == read_table_rows(path)
    assert [c["id"] for c in changes if c["_op"] == "d"] and all(c["_seq_2"] == 0 for c in changes if c["_op"] == "d")


def test_rows_that_change_their_partition(path):
    """Before and after images are in different files, which may be read in any order."""
    create(path, (1, "a"), (2, "b"), (3, "c"), partition_by=["v"])
    DeltaTable(path).update(predicate="id <> 2", updates={"v": "case when id = 1 then 'z' else 'A' end"})
    one = source(path)
    changes = decode_changes(read_records(one, one.beginning()))
    assert apply_changes(changes) == read_table_rows(path) and [c["_op"] for c in changes].count("d") == 2
    order = [(c["_op"], c["id"]) for c in changes if c["_seq_1"] == 1]
    assert order.index(("u", 3)) < order.index(("d", 3)) and order.index(("d", 1)) < order.index(("u", 1))


def test_update_has_the_changed_columns(path):
    create(path, (1, "a"), (2, "b"))
    one = source(path)
    start = one.end()
    DeltaTable(path).update(predicate="id = 1", updates={"v": "'new'"})
    [only] = payloads(read_records(one, start))
    assert (only["_op"], only["_version"], only["_before"]) == ("u", 1, {"v": "a"})
    assert (only["id"], only["v"]) == (1, "new")


def test_added_columns(path):
    """Records of older files have no value there; each record has the columns of its version."""
    create(path, (1, "a"))
    write_deltalake(path, items((2, "b"), more=pa.array([7], pa.int32())), mode="append", schema_mode="merge")
    DeltaTable(path).update(predicate="id = 1", updates={"v": "'x'"})
    one = source(path)
    found = [json.loads(value) for value in read_records(one, one.beginning())["value"].to_pylist()]
    assert [sorted(one["schema"]) for one in found] == [["id", "v"], ["id", "more", "v"], ["id", "more", "v"]]
    assert [one["payload"].get("more", "-") for one in found] == ["-", 7, None]
    assert {row["more"] for row in payloads(read_records(one))} == {None, 7}


def test_append_mode_stops_at_a_commit_with_other_changes(path):
    """Earlier commits are read; compactions are skipped."""
    create(path, (1, "a"))
    write_deltalake(path, items((2, "b")), mode="append")
    DeltaTable(path).optimize.compact()
    write_deltalake(path, items((3, "c")), mode="append")
    one = source(path, "appended")
    assert [(p["_op"], p["id"]) for p in payloads(read_records(one, one.beginning()))] == [("c", 1), ("c", 2), ("c", 3)]
    DeltaTable(path).update(predicate="id = 1", updates={"v": "'x'"})
    seen: list[pa.Table] = []
    with pytest.raises(DataLoss, match=r"Version 4 of the table items changes or deletes rows \(UPDATE\)") as stopped:
        one.run(one.beginning(), lambda b: seen.append(b.frame), threading.Event(), once=True)
    assert "`changes: feed`" in stopped.value.next_step
    assert pa.concat_tables(seen).num_rows == 3


def test_files_are_read_in_commit_order(path):
    """Also in the first read: the last row of a key is the newest, although file names are random."""
    create(path, (1, "0"))
    for number in range(1, 9):
        write_deltalake(path, items((1, str(number))), mode="append")
    assert [p["v"] for p in payloads(read_records(source(path, "appended")))] == [str(number) for number in range(9)]


@pytest.mark.parametrize("rows_first", [1, 3])
def test_reload_starts_at_the_position_of_the_stream(path, rows_first):
    """Not after it: the stream would skip rows that only a reload reads."""
    create(path, *((i, "a") for i in range(rows_first)))
    one, asked = source(path, batch_records=2), []
    start = one.start()

    def late(batch):
        at = one.start()[PLACE]
        asked.append((at, batch.span.end.get(PLACE, start[PLACE])))
        if len(asked) < 4:
            write_deltalake(path, items((10 + len(asked), "b")), mode="append")

    one.run(start, late, threading.Event(), once=True)
    assert len(asked) > 1 and all(at <= end for at, end in asked)
    one.run(Position({PLACE: asked[-1][1]}), late, threading.Event(), once=True)
    again = one.start()
    assert again[PLACE] <= asked[-1][1] and parse_offset(again[PLACE]).whole
    assert {p["id"] for p in payloads(read_records(one, again))} == set(read_table_rows(path))


def test_lane_that_follows_changes_skips_the_rows_of_a_version(path):
    create(path, (1, "a"))
    one = source(path).features
    inside = Position({PLACE: first_whole_offset(3) + 7})
    assert one.after_snapshots(inside) == Position({PLACE: first_change_offset(4)})
    assert one.after_snapshots(Position({PLACE: first_change_offset(4) + 7})) == Position(
        {PLACE: first_change_offset(4) + 7}
    )


@pytest.mark.parametrize("said", ['{"numRecords": null}', "[]", "{", ""])
def test_files_without_statistics(path, said):
    """The file itself is read."""
    create(path, (1, "a"))
    log = entry(path, 0)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["stats"] = said
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    one = source(path)
    assert [p["id"] for p in payloads(read_records(one, one.beginning()))] == [1]


def test_append_targets_are_refused(path):
    """Their rows lack values that were not sent."""
    names = ["_cdc_op", "_cdc_ts", "_event_id", "_cdc_applied_at", "_cdc_seq_1", "_cdc_unsent"]
    write_deltalake(path, items((1, "a"), **{name: ["x"] for name in names}))
    told = {"operation_column": "_cdc_op", "sequence_columns": ["_cdc_seq_1"]}
    one = source(path, "appended", **told)
    with pytest.raises(ConfigProblem, match="they lack values that were not sent"):
        read_records(one)


def test_start_from_latest(path):
    create(path, (1, "a"))
    one = source(path, start_from="latest")
    assert one.start() == one.end() and not read_records(one).num_rows
    start = one.start()
    write_deltalake(path, items((2, "b")), mode="append")
    assert [p["id"] for p in payloads(read_records(one, start))] == [2]


# -- values ------------------------------------------------------------------------------------------------------------

INNER = pa.struct([("d", pa.decimal128(38, 10)), ("t", pa.list_(pa.timestamp("us", "UTC"))), ("f", pa.float64())])
VALUES = {
    "id": (pa.int64(), [0, 2**63 - 1, -(2**63), 2**53 + 1]),
    "small": (pa.int8(), [-128, 127, None, 0]),
    "truth": (pa.bool_(), [True, False, None, True]),
    "double": (pa.float64(), [float("nan"), float("inf"), 5e-324, -0.0]),
    "single": (pa.float32(), [0.1, float("-inf"), 16777217.0, None]),
    "money": (pa.decimal128(38, 18), [Decimal("12345678901234567890.123456789012345678"), Decimal("-1E-18"), None,
                                      Decimal(0)]),
    "text": (pa.string(), ["", 'é漢🎉 "\\\n\t\u0000', None, "null"]),
    "bytes": (pa.binary(), [b"", b"\x00\xff", None, b"__"]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None, date(1815, 12, 10)]),
    "at": (pa.timestamp("us", "UTC"), [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), None,
                                       datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)]),
    "local": (pa.timestamp("us"), [datetime(1582, 10, 4), datetime(2024, 2, 29, 23, 59, 59, 1), None, datetime(1900, 1, 1)]),
    "list": (pa.list_(pa.binary()), [[b"\x00", None], [], None, [b""]]),
    "inner": (INNER, [{"d": Decimal("0.1"), "t": [None, datetime(2024, 1, 1, tzinfo=UTC)], "f": float("nan")}, None,
                      {"d": None, "t": None, "f": float("-inf")}, {"d": Decimal(1), "t": [], "f": 1.5}]),
    "map": (pa.map_(pa.string(), pa.float32()), [[("a", 0.5), ("b", float("nan"))], [], None, [("", None)]]),
    "numbers": (pa.map_(pa.int64(), pa.list_(pa.date32())), [[(2**53 + 1, [date(2024, 1, 1)])], [], None, [(0, None)]]),
    "a.b[0]": (pa.string(), ["odd", "name", None, ""]),
}  # fmt: skip


def exact(value: Any) -> Any:
    """Told apart where Python says they are equal, and equal where it says they are not."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value.hex()
    if isinstance(value, list | tuple):
        return [exact(v) for v in value]
    return {k: exact(v) for k, v in value.items()} if isinstance(value, dict) else repr(value)


def test_values_of_every_type_are_unchanged(path):
    table = pa.table({name: pa.array(values, kind) for name, (kind, values) in VALUES.items()})
    write_deltalake(path, table)
    one = source(path, "appended")
    for start in (one.start(), one.beginning()):
        frame = read_records(one, start)
        decoder = RowsDecoder({"keys": {"items": ["id"]}})
        spec = decoder.learn(frame, "items", decoder.route(frame)["fingerprint"][0].as_py())
        changes = decoder.decode(frame, spec)
        assert changes["_error"].null_count == changes.num_rows, changes["_error"]
        assert changes.schema.names[-len(VALUES) :] == list(VALUES)
        for name, (kind, values) in VALUES.items():
            assert changes.schema.field(name).type == kind
            assert [exact(v) for v in changes[name].to_pylist()] == [exact(v) for v in table[name].to_pylist()], name
            assert changes[name].null_count == values.count(None), name


def test_partition_columns(path):
    """They are in no file; their values are in the log, where an empty text is null."""
    kinds = {
        "s": pa.array(["a b", "c/é%", None, ""], pa.string()),
        "n": pa.array([2**60, -1, None, 0], pa.int64()),
        "b": pa.array([True, False, None, True]),
        "d": pa.array([date(2024, 2, 29), date(1, 1, 1), None, date(9999, 12, 31)]),
        "m": pa.array([Decimal("1.50"), Decimal("0.01"), None, Decimal(0)], pa.decimal128(9, 2)),
    }
    write_deltalake(
        path, items((1, "x"), (2, "y"), (3, "z"), (4, "e"), **kinds), partition_by=list(kinds), configuration=FEED
    )
    DeltaTable(path).delete("id = 2")
    one = source(path)
    changes = decode_changes(read_records(one, one.beginning()))
    assert apply_changes(changes) == read_table_rows(path)
    assert next(c for c in changes if c["_op"] == "d")["s"] == "c/é%"
    assert apply_changes(decode_changes(read_records(one))) == read_table_rows(path)


def test_dates_out_of_range_are_rejected(path):
    late = pa.array([2_932_897, 0], pa.int32()).view(pa.date32())
    write_deltalake(path, items((1, "a"), (2, "b"), day=late))
    frame, decoder = read_records(source(path, "appended")), RowsDecoder({"keys": {"items": ["id"]}})
    spec = decoder.learn(frame, "items", decoder.route(frame)["fingerprint"][0].as_py())
    errors = decoder.decode(frame, spec)["_error"].to_pylist()
    assert sorted(e.split(":")[0] if e else "" for e in errors) == ["", "OUT_OF_RANGE"]


def test_cdc_columns_of_a_target_are_left_out(path):
    """Unless the decoder is configured to read them."""
    own = {"_cdc_op": ["d"], "_event_id": ["e"], "_cdc_seq_1": pa.array([9], pa.int64()), "a_x0020_b": ["space"]}
    write_deltalake(path, items((1, "a"), **own))
    assert list(payloads(read_records(source(path, "appended")))[0])[4:] == ["id", "v", "a b"]
    told = {"operation_column": "_cdc_op", "sequence_columns": ["_cdc_seq_1"]}
    frame = read_records(source(path, "appended", **told))
    decoder = RowsDecoder({**told, "keys": {"items": ["id"]}})
    spec = decoder.learn(frame, "items", decoder.route(frame)["fingerprint"][0].as_py())
    [change] = decoder.decode(frame, spec).to_pylist()
    assert (change["_op"], change["_seq_1"], spec.column_names) == ("d", 9, ("id", "v", "a b"))


# -- what cannot be read on --------------------------------------------------------------------------------------------


def entry(path: str, version: int) -> Path:
    return Path(path) / "_delta_log" / f"{version:020}.json"


def test_expired_version_is_data_loss(path):
    create(path, (1, "a"))
    one, kept = source(path), {PLACE: VERSION}
    for n in range(2, 5):
        write_deltalake(path, items((n, "b")), mode="append")
    DeltaTable(path).create_checkpoint()
    for version in (0, 1):
        entry(path, version).unlink()
    assert one.beginning() == Position({PLACE: 2 * VERSION})
    assert "Version 1 of the table items is no longer in its log" in one.losses(Position(kept), {})[PLACE]
    with pytest.raises(DataLoss, match="Version 1 of the table") as lost:
        read_records(one, kept)
    assert "replicator lanes resync" in lost.value.next_step
    assert not one.losses(one.end(), {}) and len(payloads(read_records(one))) == 4


def test_vacuumed_file_is_data_loss(path):
    create(path, (1, "a"))
    one = source(path)
    start = one.start()
    DeltaTable(path).delete()
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(DataLoss, match=r"Version 0 .* cannot be read any more: its file .* was removed \(VACUUM\)"):
        read_records(one, start)


@pytest.mark.slow
def test_recreated_table_is_data_loss(path, tmp_path):
    create(path, (1, "a"))
    one, seen = source(path), {}

    def recreate_table(batch):
        seen.update(batch.identity)
        if batch.records:
            shutil.rmtree(path)
            create(path, (2, "b"))

    with pytest.raises(DataLoss, match="was created again"):
        one.run(Position(), recreate_table, threading.Event(), once=False)
    assert "created again" in source(path).losses(Position({PLACE: 0}), seen)[PLACE]
    assert not source(path).losses(Position({PLACE: 0}), source(path).identity())
    assert source(path).losses(Position({ELSEWHERE: 0}), {}) == {}
    assert "which has no other[0]" in source(path).losses(Position({ELSEWHERE: 1}), {})[ELSEWHERE]


def with_protocol(path: str, **protocol: Any) -> None:
    action = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": [], **protocol}}
    version = DeltaTable(path).version() + 1
    entry(path, version).write_text(json.dumps(action) + "\n")


@pytest.mark.parametrize("feature", ["deletionVectors", "typeWidening"])
def test_unsupported_table_features_are_reported(path, feature):
    create(path, (1, "a"))
    with_protocol(path, readerFeatures=[feature], writerFeatures=[feature])
    with pytest.raises(ConfigProblem, match=f"the Delta feature.*{feature}"):
        source(path).start()


def test_unsupported_feature_added_later_is_reported(path):
    create(path, (1, "a"))
    one = source(path)
    start = one.end()
    with_protocol(path, readerFeatures=["deletionVectors"], writerFeatures=["deletionVectors"])
    with pytest.raises(ConfigProblem, match="deletionVectors"):
        read_records(one, start)


def test_table_without_change_data_feed_is_refused(path):
    write_deltalake(path, items((1, "a")))
    with pytest.raises(ConfigProblem, match="has no change data feed") as refused:
        source(path).start()
    assert "change_data_feed: true" in refused.value.next_step
    write_deltalake(path, items((2, "b")), mode="append")
    DeltaTable(path).delete("id = 1")
    DeltaTable(path).alter.set_table_properties(FEED)
    DeltaTable(path).delete("id = 2")
    one = source(path)
    assert [p["_op"] for p in payloads(read_records(one, {PLACE: 3 * VERSION}))] == ["d"]
    with pytest.raises(DataLoss, match=r"Version 2 .* was written without a change data feed"):
        read_records(one, one.beginning())


def test_reserved_column_names_are_refused(path):
    write_deltalake(path, items((1, "a"), _before=["x"]))
    with pytest.raises(ConfigProblem, match="'_before'"):
        source(path, "appended").start()


def test_missing_table_is_reported(path):
    with pytest.raises(EnvironmentProblem, match="There is no Delta table"):
        source(path).start()


WRONG = [
    ({"path": None}, "give one of 'path' and 'table'"),
    ({"table": "a.b"}, "give one of 'path' and 'table'"),
    ({"operation_column": "op"}, "the feed says operations"),
    ({"start_from": "2024-01-01"}, "start_from"),
    ({"topic": "x"}, "topic"),
]


@pytest.mark.parametrize(("said", "sentence"), WRONG)
def test_invalid_options_are_refused(path, said, sentence):
    with pytest.raises(ConfigProblem, match=sentence):
        source(path, **said) if "path" not in said else delta_source({"format": "rows", "changes": "feed"})


def test_catalog_table_needs_spark(path):
    with pytest.raises(ConfigProblem, match="local engine"):
        delta_source({"format": "rows", "table": "a.b.c"})


# -- doctor ------------------------------------------------------------------------------------------------------------


def test_doctor_checks_the_table(path):
    create(path, (1, "a"))
    options = {"format": "rows", "path": path, "changes": "feed", "production": False}
    [fine] = delta_source_check("source items", options).diagnose()
    assert (fine.severity, fine.sentence) == ("ok", "The table items is at version 0.")
    found = delta_source_check(
        "source items", {**options, "positions": {"lake.items": {"items": {"0": 5 * VERSION}}}}
    ).diagnose()
    assert [d.severity for d in found] == ["error", "ok"] and "above the newest version" in found[0].sentence
    shutil.rmtree(path)
    [gone] = delta_source_check("source items", options).diagnose()
    assert gone.severity == "error" and "There is no Delta table" in gone.sentence
