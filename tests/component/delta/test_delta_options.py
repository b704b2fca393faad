"""Options of single tables, in process: partitions, change data feed, compaction; and protocols that are too new."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.delta_writes import ITEMS, PARTITION_0, make_item_changes, make_write

from adapters.delta import table_writer
from adapters.delta.partitions import NULL_FOLDER
from adapters.delta.tables import RANDOM_FOLDERS, STATISTICS
from adapters.sinks.delta.check import DeltaCheck
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position
from replicator.domain.table import Column, TableSpec
from replicator.testing.delivery import make_lane
from replicator.testing.sink_base import refuse_rejects

SALES = TableSpec(
    "public.items",
    (Column("country", pa.string()), Column("id", pa.int64()), Column("day", pa.date32()), Column("v", pa.string())),
    ("country", "id"),
    1,
)
LINE = "config/replicator.yaml:7"


def lane(policy: str = "scd1", **options: Any) -> Any:
    return replace(make_lane(policy), options=options, config_line=LINE)


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[DeltaRsSink]:
    opened = DeltaRsSink({"path": str(tmp_path)})
    yield opened
    opened.close()


def apply_sales(
    sink: DeltaRsSink, of: Any, rows: list[Any], *, table: TableSpec = SALES, reject: Any = refuse_rejects
) -> Any:
    """Applies the rows at the lane's position."""
    state = sink.state(of)
    write = make_write(rows, state.position[PARTITION_0] if state else 0, table=table, lane=of)
    sink.prepare(of, write.plan)
    return sink.apply([write], reject)[of.id]


def sale(country: str | None, number: int, v: str = "", op: str = "c") -> tuple[str, dict[str, Any]]:
    return op, {"country": country, "id": number, "day": date(2024, 1, 1 + number % 28), "v": v or f"v{number}"}


def values(sink: DeltaRsSink) -> list[tuple[Any, ...]]:
    return sorted((row["country"], row["id"], row["v"]) for row in sink.read("items").to_pylist())


COUNTRIES = ["NL", "it's", "é漢", "a b", "a/b=c%20", 'say "x"; --', "back\\slash", " ", "..", "null", "x" * 70]


def test_unusual_texts_work_as_partition_values(sink: DeltaRsSink, tmp_path: Path) -> None:
    """The rows are written, completed from a partial image, and deleted."""
    of = lane(partition_by=("country",))
    apply_sales(sink, of, [sale(c, 1) for c in COUNTRIES])
    assert DeltaTable(str(tmp_path / "items")).metadata().partition_columns == ["country"]
    partial = [("u", {"country": c, "id": 1, "v": "new", "_unsent": ["day"]}) for c in COUNTRIES]
    assert apply_sales(sink, of, partial).counts.applied == len(COUNTRIES)
    assert values(sink) == sorted((c, 1, "new") for c in COUNTRIES)
    assert {row["day"] for row in sink.read("items").to_pylist()} == {date(2024, 1, 2)}
    apply_sales(sink, of, [sale(c, 1, op="d") for c in COUNTRIES])
    assert values(sink) == []


@pytest.mark.parametrize("text", ["", NULL_FOLDER, "a\0b", "x" * 78])
def test_text_that_cannot_name_a_partition_is_rejected(sink: DeltaRsSink, text: str) -> None:
    rejected: list[Any] = []
    rows = [sale("NL", 1), sale(text, 2), sale(text, 3, op="d")]
    done = apply_sales(sink, lane(partition_by=("country",)), rows, reject=lambda _, bad: rejected.extend(bad.to_pylist()))
    assert (done.counts.applied, done.counts.rejected) == (2, 1)
    assert values(sink) == [("NL", 1, "v1")]
    assert [(row["id"], row["_error"].split(":")[0]) for row in rejected] == [(2, "OUT_OF_RANGE")]
    assert "cannot name a partition" in rejected[0]["_error"]
    partial = [("u", {"country": c, "id": 1, "v": "new", "_unsent": ["day"]}) for c in (text, "NL")]
    apply_sales(sink, lane(), partial, reject=lambda _, bad: rejected.extend(bad.to_pylist()))
    assert values(sink) == [("NL", 1, "new")] and rejected[1]["_error"].startswith("INCOMPLETE")


@pytest.mark.parametrize("text", ["", "x" * 300])
def test_delete_with_an_invalid_partition_is_rejected_under_append(sink: DeltaRsSink, text: str) -> None:
    """A delete is a row there, so it needs a valid partition too."""
    rejected: list[Any] = []
    rows = [sale("NL", 1), sale(text, 2), sale(text, 2, op="d"), sale("NL", 1, op="d")]
    done = apply_sales(
        sink, lane("append", partition_by=("country",)), rows, reject=lambda _, bad: rejected.extend(bad.to_pylist())
    )
    assert (done.counts.applied, done.counts.rejected, len(rejected)) == (2, 2, 2)
    assert values(sink) == [("NL", 1, "v1")] * 2


def hide_partition(table: Path, partition: str) -> list[Path]:
    """Renames the files of a partition, so that a read of them fails."""
    files = list((table / partition).glob("*.parquet"))
    assert files
    return [file.rename(file.with_suffix(".gone")) for file in files]


def test_only_partitions_of_the_batch_are_read(sink: DeltaRsSink, tmp_path: Path) -> None:
    """The partition is part of the key. Rows are also completed, and found by their previous key."""
    of = lane(partition_by=("country",))
    apply_sales(sink, of, [sale(c, n) for c in ("NL", "BE", "DE") for n in (1, 2)])
    hide_partition(tmp_path / "items", "country=DE")
    partial = ("u", {"country": "NL", "id": 1, "v": "new", "_unsent": ["day"]})
    moved = ("u", {"country": "BE", "id": 7, "v": "m", "_moved_from": {"country": "BE", "id": 2}, "_unsent": ["day"]})
    assert apply_sales(sink, of, [partial, moved, sale("BE", 2, op="d")]).counts.applied == 3
    with pytest.raises(Fatal):
        apply_sales(sink, of, [sale("DE", 1, "x", op="u")])


def test_every_partition_is_read_if_it_is_not_part_of_the_key(sink: DeltaRsSink, tmp_path: Path) -> None:
    of = lane(partition_by=("day",))
    apply_sales(sink, of, [sale("NL", 1), sale("NL", 2)])
    apply_sales(sink, of, [("u", {**sale("NL", 1)[1], "day": date(2024, 1, 3), "v": "moved"})])
    assert values(sink) == [("NL", 1, "moved"), ("NL", 2, "v2")]
    metadata = DeltaTable(str(tmp_path / "items")).metadata()
    assert metadata.partition_columns == ["day"]
    covered = set(metadata.configuration[STATISTICS].split(","))
    assert {"country", "id"} < covered and "day" not in covered


def test_invalid_partition_column_is_refused_with_its_line(sink: DeltaRsSink, tmp_path: Path) -> None:
    table = replace(SALES, columns=(*SALES.columns, Column("price", pa.float64())))
    for name, sentence in (("contry", "has no column 'contry'"), ("_cdc_op", "has no column"), ("price", "has type double")):
        with pytest.raises(ConfigProblem, match=sentence) as refused:
            sink.prepare(lane(partition_by=(name,)), plan_for("scd1", table))
        assert LINE in refused.value.next_step
    assert not (tmp_path / "items").exists()


def test_table_with_other_partitions_is_refused(sink: DeltaRsSink) -> None:
    """It is used as it is if no partitions, or the same ones in any order, are configured."""
    apply_sales(sink, lane(partition_by=("country", "day")), [sale("NL", 1)])
    for by in (("country",), ("id",)):
        with pytest.raises(ConfigProblem, match="already exists and is partitioned by country, day") as refused:
            sink.prepare(lane(partition_by=by), plan_for("scd1", SALES))
        assert LINE in refused.value.next_step
    apply_sales(sink, lane(partition_by=("day", "country")), [sale("NL", 2)])
    apply_sales(sink, lane(), [sale("NL", 1, "new", op="u")])
    assert values(sink) == [("NL", 1, "new"), ("NL", 2, "v2")]


def test_column_name_invalid_in_delta_works_as_partition(sink: DeltaRsSink, tmp_path: Path) -> None:
    table = TableSpec("public.items", (Column("a b", pa.int64()), Column("v", pa.string())), ("a b",), 1)
    of = lane(partition_by=("a b",))
    for v in ("x", "y"):
        apply_sales(sink, of, [("c", {"a b": 1, "v": v})], table=table)
    assert [(row["a b"], row["v"]) for row in sink.read("items").to_pylist()] == [(1, "y")]
    assert DeltaTable(str(tmp_path / "items")).metadata().partition_columns == ["a_x0020_b"]


def test_paths_that_delta_rs_cannot_remove_are_refused(sink: DeltaRsSink, tmp_path: Path) -> None:
    """Spark writes such a path for a value outside ASCII, if the table does not request random folders."""
    apply_sales(sink, lane(partition_by=("country",)), [sale("é", 1)])
    assert DeltaTable(str(tmp_path / "items")).metadata().configuration[RANDOM_FOLDERS] == "true"
    log = tmp_path / "items" / "_delta_log" / f"{1:020}.json"
    text = log.read_text()
    assert "country=%25C3%25A9" in text
    log.write_text(text.replace("country=%25C3%25A9", "country=é"))
    (tmp_path / "items" / "country=%C3%A9").rename(tmp_path / "items" / "country=é")
    with pytest.raises(Fatal, match="rows would exist twice"):
        sink.prepare(lane(), plan_for("scd1", SALES))


def read_feed(table: Path, first: int) -> list[dict[str, Any]]:
    reader = DeltaTable(str(table)).load_cdf(starting_version=first)
    rows = pa.RecordBatchReader.from_stream(reader).read_all().to_pylist()
    return sorted(rows, key=lambda row: (row["_commit_version"], row["_change_type"], row["id"]))


def replay_changes(changes: list[dict[str, Any]], names: list[str]) -> Counter[str]:
    """The rows that remain after all changes of a feed."""
    left: Counter[str] = Counter()
    for change in changes:
        row = repr([change[name] for name in names])
        left[row] += 1 if change["_change_type"] in ("insert", "update_postimage") else -1
    return +left if min(left.values(), default=0) >= 0 else left


@pytest.mark.parametrize("by", [(), ("country",)])
def test_change_data_feed_describes_every_change(sink: DeltaRsSink, tmp_path: Path, by: tuple[str, ...]) -> None:
    """Inserts, updates, deletes, key changes and a truncate, with rows that stay. Compaction adds no changes."""
    of = lane(change_data_feed=True, partition_by=by, compact_every=2)
    apply_sales(sink, of, [sale(c, n) for c in ("NL", "BE") for n in range(5)])
    version = DeltaTable(str(tmp_path / "items")).version()
    move = [
        ("d", {"country": "NL", "id": 2}),
        ("u", {**sale("BE", 12)[1], "_moved_from": {"country": "NL", "id": 2}}),
    ]
    apply_sales(sink, of, [sale("NL", 1, "new", op="u"), sale("BE", 3, op="d"), *move, sale("BE", 9)])
    changes = Counter(row["_change_type"] for row in read_feed(tmp_path / "items", version + 1))
    assert changes == {"insert": 2, "delete": 2, "update_preimage": 1, "update_postimage": 1}
    for number in range(30, 54):
        apply_sales(sink, of, [sale("NL", number, "late")])
    apply_sales(sink, of, [("t", {})])
    apply_sales(sink, of, [sale("NL", 1, "again")])
    table = DeltaTable(str(tmp_path / "items"))
    assert any(entry["operation"] == "OPTIMIZE" for entry in table.history())
    names = ["country", "id", "v", "_event_id"]
    kept = Counter(repr([row[n] for n in names]) for row in sink.read("items").to_pylist())
    assert replay_changes(read_feed(tmp_path / "items", 0), names) == kept
    assert values(sink) == [("NL", 1, "again")]


def test_change_data_feed_can_be_enabled_later(sink: DeltaRsSink, tmp_path: Path) -> None:
    apply_sales(sink, lane(), [sale("NL", 1)])
    apply_sales(sink, lane(change_data_feed=True), [sale("NL", 1, "new", op="u")])
    apply_sales(sink, lane(), [sale("NL", 1, op="d")])
    table = DeltaTable(str(tmp_path / "items"))
    kinds = [row["_change_type"] for row in read_feed(tmp_path / "items", table.version() - 1)]
    assert kinds == ["update_postimage", "update_preimage", "delete"]


def test_deletion_vectors_are_refused(sink: DeltaRsSink) -> None:
    with pytest.raises(ConfigProblem, match="delta-rs writes no deletion vectors") as refused:
        apply_sales(sink, lane(deletion_vectors=True), [sale("NL", 1)])
    assert LINE in refused.value.next_step


def count_compactions(tmp_path: Path, options: dict[str, Any], entry: dict[str, Any]) -> int:
    sink = DeltaRsSink({"path": str(tmp_path), **options})
    of = lane(**entry)
    for i in range(2 * table_writer.FEWEST_FILES + 4):
        apply_sales(sink, of, make_item_changes(i), table=ITEMS)
    sink.close()
    return sum(entry["operation"] == "OPTIMIZE" for entry in DeltaTable(str(tmp_path / "items")).history())


def test_compaction_runs_at_the_configured_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry overrides the sink; 0 means never; the default is not due yet."""
    monkeypatch.setattr(table_writer, "FEWEST_FILES", 4)
    cases: list[tuple[dict[str, Any], dict[str, Any], int]] = [
        ({}, {}, 0),
        ({"compact_every": 6}, {}, 2),
        ({"compact_every": 6}, {"compact_every": 0}, 0),
        ({"compact_every": 0}, {"compact_every": 10}, 1),
        ({"compact_every": 0}, {}, 0),
    ]
    for number, (options, entry, expected) in enumerate(cases):
        assert count_compactions(tmp_path / str(number), options, entry) == expected, (options, entry)


def test_compaction_counts_commits_of_all_runs(tmp_path: Path) -> None:
    """A program that starts every night for a few commits compacts too. A repeated batch is not a commit."""
    of = lane(compact_every=20)
    for i in range(20):
        sink = DeltaRsSink({"path": str(tmp_path)})
        assert "OPTIMIZE" not in list_operations(tmp_path)
        apply_sales(sink, of, make_item_changes(i), table=ITEMS)
        sink.apply([make_write(make_item_changes(i), i, table=ITEMS, lane=of)], refuse_rejects)
        sink.close()
    assert list_operations(tmp_path)[0] == "OPTIMIZE"


def list_operations(lake: Path) -> list[str]:
    table = lake / "items"
    return [entry["operation"] for entry in DeltaTable(str(table)).history()] if table.exists() else []


def test_partitions_with_one_file_each_are_not_compacted(sink: DeltaRsSink, tmp_path: Path) -> None:
    of = lane(partition_by=("id",), compact_every=1)
    for i in range(table_writer.FEWEST_FILES + 4):
        apply_sales(sink, of, make_item_changes(i), table=ITEMS)
    table = DeltaTable(str(tmp_path / "items"))
    assert len(table.file_uris()) > table_writer.FEWEST_FILES and not table_writer._is_scattered(table)


def commit_as_newer_writer(table: Path, protocol: dict[str, Any]) -> int:
    """Commits an upgrade by a newer writer. Returns its version."""
    version = DeltaTable(str(table)).version() + 1
    entries = [{"protocol": protocol}, {"commitInfo": {"timestamp": 1_700_000_000_000, "operation": "UPGRADE"}}]
    (table / "_delta_log" / f"{version:020}.json").write_text("\n".join(map(json.dumps, entries)) + "\n")
    return version


PROTOCOLS = [
    ({"minReaderVersion": 1, "minWriterVersion": 99}, "writer version 99"),
    ({"minReaderVersion": 2, "minWriterVersion": 6}, "writer version 6"),
    ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["fromTheFuture"]}, "table feature fromTheFuture"),
    (
        {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["clustering", "domainMetadata"]},
        "liquid clustering, which delta-rs cannot write",
    ),
    (
        {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": ["newRead"], "readerFeatures": ["newRead"]},
        "something new",
    ),
]


@pytest.mark.parametrize("reopened", [True, False])
@pytest.mark.parametrize(("protocol", "reason"), PROTOCOLS)
def test_newer_protocol_is_refused_by_name(
    sink: DeltaRsSink, tmp_path: Path, protocol: dict[str, Any], reason: str, *, reopened: bool
) -> None:
    """At the start of a lane, and when the table changes while the lane runs. Nothing is written, and the error is not
    retryable."""
    of = lane()
    apply_sales(sink, of, make_item_changes(1), table=ITEMS)
    version = commit_as_newer_writer(tmp_path / "items", protocol)
    write = make_write(make_item_changes(2), 1, table=ITEMS, lane=of)
    if reopened:
        sink.close()
    with pytest.raises(Fatal, match=reason) as refused:
        if reopened:
            sink.prepare(of, write.plan)
        sink.apply([write], refuse_rejects)
    assert "Nothing was written" in refused.value.sentence
    log = tmp_path / "items" / "_delta_log"
    assert max(int(f.stem) for f in log.glob("*.json")) == version
    upgraded_log = log / f"{version:020}.json"
    upgraded_log.unlink()
    sink.prepare(of, write.plan)
    assert sink.apply([write], refuse_rejects)[of.id].position == Position({PARTITION_0: 2})


def test_table_of_another_lane_is_refused(sink: DeltaRsSink, tmp_path: Path) -> None:
    """Two pipelines, or one with a renamed sink, would each write every row."""
    apply_sales(sink, lane(), [sale("NL", 1)])
    for other in (replace(lane(), pipeline="another"), replace(lane(), id="renamed.items")):
        with pytest.raises(ConfigProblem, match=r"table items is written by lane target.items of pipeline") as refused:
            apply_sales(sink, other, [sale("NL", 1)])
        assert "`into`" in refused.value.next_step and "_replicator/positions" in refused.value.next_step
        with pytest.raises(ConfigProblem, match="is written by lane"):
            sink.reset(other)
    assert values(sink) == [("NL", 1, "v1")]


def test_path_that_cannot_be_looked_at_is_a_finding(tmp_path):
    (found,) = DeltaCheck("sink lake", {"path": str(tmp_path / ("x" * 300))}).diagnose()
    assert found.severity == "error" and "cannot be read (File name too long)" in found.sentence and found.next_step
