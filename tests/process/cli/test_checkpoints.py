"""Checkpoints of lanes: a replay from a checkpoint equals a replay of the whole log."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.cli_program import run_program, start_program
from support.snapshotted_shop import ENTRIES, ON_SPARK, CheckpointedShop, read_canonical_rows

from adapters.sinks.delta.lane import DeltaLane
from adapters.sinks.delta.sink import CHANGE_DATA_FEED, DELETION_VECTORS, MirrorSink
from adapters.stack.layout import find_free_port
from replicator.application.lane_registry import make_refused_id
from replicator.application.operations import (
    change_history,
    checkpoint,
    checkpoint_schedule,
    read_side,
    table_swap,
)
from replicator.application.operations.checkpoint import CheckpointStore
from replicator.domain.errors import ConfigProblem, DataLoss, Fatal
from replicator.domain.event_log import LogCut
from replicator.domain.position import Position, TopicPartition
from replicator.ports.components import Components, RebuildRequest
from replicator.ports.sink import CheckpointUnsupported
from replicator.testing.histories import History, make_random_history
from replicator.testing.source import Statement, StreamShape
from replicator.wiring import event_logs
from replicator.wiring.container import Container, build_container, run_until_caught_up

ALSO = ("plain", "partitioned")
"""Of which other tests here go on from checkpoints too."""
SEEDS = [pytest.param(entry, 1, marks=pytest.mark.long if entry in ALSO else ()) for entry in ENTRIES]
MORE = [pytest.param(entry, seed, marks=pytest.mark.long) for entry in ENTRIES for seed in range(2, 12)]


@pytest.mark.parametrize(("entry", "seed"), [*SEEDS, *MORE])
def test_replay_from_a_checkpoint_equals_a_replay_of_the_whole_log(tmp_path: Path, entry: str, seed: int) -> None:
    """Random histories, a checkpoint at a random position, a second one based on the first; now, and as of a random
    time."""
    chance = random.Random(seed)
    history = make_random_history(
        seed, 40, toast=True, keys=("int",) if entry == "partitioned" else ("int", "text"), disorder=chance.choice((0, 6))
    )
    if (
        entry == "soft"
    ):  # Of several partitions a change below a truncate depends on where batches end (docs/how-to/keep-deleted-rows.md).
        history = replace(history, shape=replace(history.shape, partitions=1, shuffle=None))
    shop = CheckpointedShop(tmp_path / "shop", history, entry)
    count = len(history.events)
    first, second = sorted(chance.sample(range(1, count), 2))
    for end in (first, second):
        shop.reach(end)
        checkpoint.take_checkpoint(shop.parts, shop.lane)
    shop.reach(count)
    times = sorted({e.change.ts for e in history.events if e.change is not None and e.change.ts is not None})
    used = []
    for number, until in enumerate((None, chance.choice(times))):
        *whole, _ = shop.replay_lane(tmp_path / f"whole{number}", until, from_snapshot=False)
        *begun, snapshot = shop.replay_lane(tmp_path / f"begun{number}", until, from_snapshot=True)
        assert begun == whole, (entry, seed, until)
        used.append(snapshot)
    assert used[0] == 2


def make_shop(folder: Path, more: str = "") -> CheckpointedShop:
    """About forty changes of one partition under scd1."""
    writes = tuple(Statement("write", n % 7, salt=n) for n in range(40))
    history = History(StreamShape(values=("text", "int"), tombstones=False), writes)
    return CheckpointedShop(folder / "shop", history, "plain", more)


def test_checkpoint_of_other_rules_is_not_used(tmp_path: Path) -> None:
    shop = make_shop(tmp_path)
    shop.reach(30)
    taken = checkpoint.take_checkpoint(shop.parts, shop.lane)
    assert checkpoint.take_checkpoint(shop.parts, shop.lane) == taken, "nothing has come since"
    shop.config("{sink: lake, into: plain, deletes: soft}")
    assert shop.replay_lane(tmp_path / "soft", from_snapshot=True)[-1] is None
    other = checkpoint.take_checkpoint(shop.parts, shop.lane)
    assert other.number == 2 and other.rules != taken.rules
    shop.config("plain")
    assert shop.replay_lane(tmp_path / "again", from_snapshot=True)[-1] == 1


def test_checkpoint_of_recreated_topics_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is reported."""
    shop, topic = make_shop(tmp_path), "cdc.public.items"
    shop.reach(20)
    ids = [((topic, "first"),)]
    monkeypatch.setattr(checkpoint, "get_topic_identity", lambda *_: ids[-1])
    checkpoint.take_checkpoint(shop.parts, shop.lane)
    told = []
    for name in ("first", "second"):
        ids.append(((topic, name),))
        (one,) = checkpoint_schedule.report_checkpoints(shop.parts, {"lake.plain": "public.items"})
        told.append((one["usable"], len(checkpoint.list_checkpoints(shop.parts, shop.lane))))
    assert told == [(True, 1), (False, 0)]


def test_kill_during_a_checkpoint_keeps_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = make_shop(tmp_path)
    shop.reach(20)
    taken = checkpoint.take_checkpoint(shop.parts, shop.lane)
    shop.reach(40)
    whole = shop.replay_lane(tmp_path / "whole", from_snapshot=False)[:-1]
    store = checkpoint.find_store(shop.parts, shop.lane)
    assert store is not None
    for step in ("publish_draft", "copy_checkpoint"):
        with monkeypatch.context() as patched:
            patched.setattr(CheckpointStore, step, raise_killed)
            with pytest.raises(ProcessKilled):
                checkpoint.take_checkpoint(shop.parts, shop.lane)
        assert store.list_usable() == [taken] and list(store.folder.glob("draft*"))
        assert shop.replay_lane(tmp_path / f"begun-{step}", from_snapshot=True) == (*whole, 1)
    assert checkpoint.take_checkpoint(shop.parts, shop.lane).number == 2 and not list(store.folder.glob("draft*"))


def test_damaged_checkpoint_is_skipped_and_reported(tmp_path: Path) -> None:
    """The checkpoint before it is used, also as the base of the next one."""
    shop = make_shop(tmp_path)
    for end in (10, 20):
        shop.reach(end)
        checkpoint.take_checkpoint(shop.parts, shop.lane)
    shop.reach(30)
    *whole, _ = shop.replay_lane(tmp_path / "whole", from_snapshot=False)
    store = checkpoint.find_store(shop.parts, shop.lane)
    assert store is not None
    next((store.folder / "2" / "lake" / "then").glob("*.parquet")).unlink()
    assert shop.replay_lane(tmp_path / "begun", from_snapshot=True) == (*whole, 1)
    told: list[str] = []
    assert checkpoint.take_checkpoint(shop.parts, shop.lane, told.append).number == 3
    assert any(str(store.folder / "2") in said for said in told) and any("checkpoint 1" in said for said in told)
    assert [one.number for one in store.list_usable()] == [1, 3]
    (one,) = checkpoint_schedule.report_checkpoints(shop.parts, {"lake.plain": "public.items"})
    assert (one["number"], one["usable"]) == (3, True) and "damaged" in one["error"]


def test_checkpoint_with_a_gap_behind_it_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless no later record is needed. The remedy is to reload the lane."""
    shop = make_shop(tmp_path)
    shop.reach(20)
    taken = checkpoint.take_checkpoint(shop.parts, shop.lane)
    shop.reach(30)
    ((place, end),) = taken.position.items()
    monkeypatch.setattr(checkpoint, "get_removed", lambda *_: Position({place: end + 5}))
    assert checkpoint.find_newest(shop.parts, shop.lane) is None
    at = LogCut(below=taken.position, end=taken.position)
    assert checkpoint.find_newest(shop.parts, shop.lane, at) == taken
    with pytest.raises(DataLoss) as refused:
        checkpoint.take_checkpoint(shop.parts, shop.lane)
    assert f"below offset {end + 5}" in str(refused.value) and "resync lake.plain" in refused.value.next_step
    monkeypatch.setattr(checkpoint, "get_removed", lambda *_: taken.position)
    assert checkpoint.take_checkpoint(shop.parts, shop.lane).number == 2


class ProcessKilled(BaseException):
    """An exception that no code catches."""


def raise_killed(*_: object) -> None:
    raise ProcessKilled


def test_log_is_truncated_up_to_its_checkpoints(tmp_path: Path) -> None:
    """Never beyond the retention. Queries of the deleted part are refused."""
    shop = make_shop(tmp_path, ", retention: 1 milliseconds")
    place = TopicPartition("cdc.public.items", 0)
    said: list[str] = []
    shop.reach(20)
    shorten = partial(checkpoint_schedule.truncate_logs, call_sink=checkpoint_schedule.make_sink_caller(shop.parts))
    assert shorten(shop.parts) == {}, "there is no checkpoint"
    first = checkpoint.take_checkpoint(shop.parts, shop.lane)
    shop.reach(30)
    checkpoint.take_checkpoint(shop.parts, shop.lane)
    shop.reach(40)
    at = shop.history.events[10].change
    assert at is not None and at.ts is not None
    whole = shop.replay_lane(tmp_path / "whole", from_snapshot=False)[:-1]
    assert shorten(shop.parts) == {"raw": {place: first.position[place]}}
    assert shorten(shop.parts) == {"raw": {}}, "nothing more"
    assert shop.replay_lane(tmp_path / "begun", from_snapshot=True) == (*whole, 2)
    with pytest.raises(Fatal, match="log retention has removed"):
        shop.replay_lane(tmp_path / "refused", from_snapshot=False)
    with pytest.raises(DataLoss, match=f"below offset {first.position[place]} of .*ends at the requested time"):
        read_side.read_target(shop.parts, "lake.plain", as_of=at.ts)
    last = shop.history.events[first.position[place] - shop.history.events[0].offset - 1].change
    assert last is not None and last.ts is not None
    for then in (last.ts, first.position):
        found = [read_side.read_target(shop.parts, "lake.plain", as_of=then, from_log=forced) for forced in (False, True)]
        assert found[0].num_rows == found[1].num_rows == first.rows
    with pytest.raises(DataLoss, match="ends at the requested time"):
        read_side.read_target(shop.parts, "lake.plain", as_of=Position({place: first.position[place] - 1}), from_log=True)
    part = RebuildRequest(shop.lane, "part", since=(last.ts + timedelta(microseconds=1)).isoformat())
    made = build_container(checkpoint.prepare_restored_rebuild(shop.parts, part, said.append).setup)
    run_until_caught_up(made)
    (only,) = made.status().report().lanes
    assert only.status == "running" and read_canonical_rows(tmp_path / "shop" / "lake" / "part") == whole[0]
    assert len(said) == 2 and "records below offset" in said[0] and "The result lacks the requested records" in said[0]
    shop.config("{sink: lake, into: plain, deletes: soft}", ", retention: 1 milliseconds")
    with pytest.raises(DataLoss, match="has today's rules"):
        checkpoint.take_checkpoint(shop.parts, shop.lane)
    with event_logs.open_reader(shop.load_config, "public.items") as log:
        entries, read = change_history.read_history(log, "public.items", ["1"], said.append)
    assert entries and read.missing_sentences == [
        f"log retention has removed the records below offset {first.position[place]} of {place} from the event log"
    ]


@pytest.mark.parametrize("entry", ["by_column", "partitioned", pytest.param("versions", marks=pytest.mark.long)])
def test_target_is_rebuilt_from_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    """Under another name, and in place of the lane's own target, whose lane continues. A killed rebuild is repeated."""
    shop = CheckpointedShop(tmp_path / "shop", make_random_history(7, 40, toast=True, keys=("int",)), entry)
    count = len(shop.history.events)
    shop.reach(count // 2)
    checkpoint.take_checkpoint(shop.parts, shop.lane)
    shop.reach(count)
    asked, said = RebuildRequest(shop.lane, "again"), list[str]()
    with monkeypatch.context() as patched:
        patched.setattr(DeltaLane, "record_state", raise_killed)
        with pytest.raises(ProcessKilled):
            checkpoint.prepare_restored_rebuild(shop.parts, asked, said.append)
    rebuild = checkpoint.prepare_restored_rebuild(shop.parts, asked, said.append)
    (taken,) = checkpoint.list_checkpoints(shop.parts, shop.lane)
    assert said == [f"lake.again: starting from checkpoint 1 of {taken.taken_at.isoformat()}"] * 2
    made = build_container(rebuild.setup)
    run_until_caught_up(made)
    lake = tmp_path / "shop" / "lake"
    (lane,) = made.status().report().lanes
    assert lane.counts["applied"] > 0 and read_canonical_rows(lake / "again") == read_canonical_rows(lake / entry)
    assert DeltaTable(str(lake / "again")).metadata().partition_columns == ["k1"] * (entry == "partitioned")
    assert lane.position == next(run.position for run in run_shop(shop) if run.id == f"lake.{entry}")
    before = read_canonical_rows(lake / entry)
    done = table_swap.swap_target(shop.parts, shop.lane, catch_up, said.append)
    assert done["rejected"] == 0 and len(said) == 3 and read_canonical_rows(lake / entry) == before
    assert {run.counts["applied"] for run in run_shop(shop)} == {0}


def test_lane_whose_target_belongs_to_another_table_is_not_swapped(tmp_path: Path) -> None:
    shop = make_shop(tmp_path)
    shop.reach(5)
    register, before = shop.parts.register, read_canonical_rows(tmp_path / "shop" / "lake" / "plain")
    entry = register.load(shop.lane.source)
    register.save(shop.lane.source, replace(entry, beginnings={**entry.beginnings, make_refused_id(shop.lane): Position()}))
    with pytest.raises(ConfigProblem, match="both go to plain in sink lake"):
        table_swap.swap_target(shop.parts, shop.lane, catch_up)
    assert read_canonical_rows(tmp_path / "shop" / "lake" / "plain") == before


def test_lane_whose_target_belongs_to_another_table_gets_no_checkpoint(tmp_path: Path) -> None:
    """Both lanes have the same name, so the checkpoint would replace those of the other table."""
    shop = make_shop(tmp_path)
    shop.config("{sink: lake}")
    shop.reach(5)
    checkpoint.take_checkpoint(shop.parts, shop.lane)
    config = tmp_path / "shop" / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("match: public.items", "match: '*.items'"))
    other = shop.parts.resolve_lanes("aside.items")[0]
    assert other.id == shop.lane.id
    with pytest.raises(ConfigProblem, match=r"aside\.items both go to items in sink lake"):
        checkpoint.take_checkpoint(shop.parts, other)
    assert len(checkpoint.list_checkpoints(shop.parts, shop.lane)) == 1


def test_checkpoint_removed_during_the_copy_is_replaced_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy starts again with another checkpoint."""
    shop = make_shop(tmp_path)
    for end in (20, 30):
        shop.reach(end)
        checkpoint.take_checkpoint(shop.parts, shop.lane)
    shop.reach(40)
    whole = shop.replay_lane(tmp_path / "whole", from_snapshot=False)[:-1]
    there, kept = checkpoint.find_store(shop.parts, shop.lane), tmp_path / "kept"
    assert there is not None
    shutil.copytree(there.folder / "2", kept)
    real = checkpoint._copy_or_link

    def removing(source: str, target: str) -> None:
        real(source, target)
        if source.endswith(".parquet") and (there.folder / "2").exists():
            there.remove_checkpoint(there.list_usable()[-1])

    monkeypatch.setattr(checkpoint, "_copy_or_link", removing)
    assert shop.replay_lane(tmp_path / "begun", from_snapshot=True) == (*whole, 1)
    shutil.copytree(kept, there.folder / "2")
    said = list[str]()
    checkpoint.prepare_restored_rebuild(shop.parts, RebuildRequest(shop.lane, "again"), said.append).catch_up()
    assert [sentence.split(" of ")[0] for sentence in said] == [
        f"lake.again: starting from checkpoint {number}" for number in (2, 1)
    ]
    assert read_canonical_rows(tmp_path / "shop" / "lake" / "again") == whole[0]


def catch_up(rebuild: Components) -> dict[str, Any]:
    rebuild.catch_up()
    return {"records": 0, "applied": 0, "rejected": 0}


def run_shop(shop: CheckpointedShop) -> tuple[Any, ...]:
    made = Container(loaded=shop.load_config)
    run_until_caught_up(made)
    return tuple(run for run in made.status().report().lanes if run.table)


def test_replay_without_a_checkpoint_reports_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop, said = make_shop(tmp_path), list[str]()
    shop.reach(20)
    assert checkpoint.find_checkpoint(shop.parts, RebuildRequest(shop.lane, "again"), said.append) is None and said == []
    checkpoint.take_checkpoint(shop.parts, shop.lane)
    at = "2020-01-01T00:00:00+00:00"
    for asked in ({"since": at}, {"until": at}, {"policy": "scd2"}):
        assert checkpoint.find_checkpoint(shop.parts, RebuildRequest(shop.lane, "again", **asked), said.append) is None
    monkeypatch.setattr(MirrorSink, "restore_state", None)
    assert checkpoint.find_checkpoint(shop.parts, RebuildRequest(shop.lane, "again"), said.append) is None
    periods = ("only records of a period", "today's rules, ends at the requested time", "have policy scd1")
    whys = (*periods, "sink lake does not support it yet")
    assert len(said) == 4 and all(why in sentence for why, sentence in zip(whys, said, strict=True))


LAYOUTS = {
    "in partitions": ("partition_by: [k1]", ""),
    "clustered": ("cluster_by: [k1], deletion_vectors: true", ON_SPARK),
    "with a change data feed": ("change_data_feed: true", ON_SPARK),
}


def test_checkpoint_does_not_depend_on_the_file_layout(tmp_path: Path) -> None:
    """A checkpoint of another layout or engine is used, and each engine can store one from the same files."""
    shop = make_shop(tmp_path)
    shop.reach(20)
    first = checkpoint.take_checkpoint(shop.parts, shop.lane)
    for number, (layout, engine) in enumerate(LAYOUTS.values()):
        shop.engine = ""
        shop.config("plain")
        shop.reach(25 + number)
        whole = shop.replay_lane(tmp_path / f"whole{number}", from_snapshot=False)
        shop.engine = engine
        shop.config(f"{{sink: lake, into: plain, {layout}}}")
        found = shop.replay_lane(tmp_path / f"begun{number}", from_snapshot=True)
        assert found == (*whole[:-1], first.number + number) and found[0]
        assert checkpoint.take_checkpoint(shop.parts, shop.lane).number == first.number + number + 1
        store = checkpoint.find_store(shop.parts, shop.lane)
        assert store is not None
        for table in store.folder.glob("*/lake/then"):
            made = DeltaTable(str(table)).metadata()
            assert not made.partition_columns and not {*made.configuration} & {CHANGE_DATA_FEED, DELETION_VECTORS}


def test_target_that_cannot_restore_a_checkpoint_reads_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command reports it. If the start of the log is deleted, nothing is written."""
    shop = make_shop(tmp_path, ", retention: 1 milliseconds")
    shop.reach(20)
    checkpoint.take_checkpoint(shop.parts, shop.lane)
    shop.reach(40)
    whole, said = shop.replay_lane(tmp_path / "whole", from_snapshot=False)[0], list[str]()
    real = MirrorSink.restore_state

    def refuse_conversion(*words: Any) -> None:
        real(*words)
        raise CheckpointUnsupported("has what nobody keeps")

    monkeypatch.setattr(MirrorSink, "restore_state", refuse_conversion)
    checkpoint.prepare_restored_rebuild(shop.parts, RebuildRequest(shop.lane, "again"), said.append).catch_up()
    lake = tmp_path / "shop" / "lake"
    assert read_canonical_rows(lake / "again") == whole
    why = "none can be used, because number 1 has what nobody keeps"
    assert said[1:] == [f"lake.again: reading the whole event log instead of a checkpoint: {why}"]
    checkpoint_schedule.truncate_logs(shop.parts, checkpoint_schedule.make_sink_caller(shop.parts))
    with pytest.raises(DataLoss, match="because number 1 has what nobody keeps"):
        checkpoint.prepare_restored_rebuild(shop.parts, RebuildRequest(shop.lane, "once_more"))
    assert not (lake / "once_more").exists()


def test_checkpoints_are_stored_when_due_and_reported(tmp_path: Path) -> None:
    """By a run that ends, by a daemon, and by the command. Erasures apply to them too."""
    shop = make_shop(tmp_path)
    shop.reach(20)
    folder = tmp_path / "shop"
    ended = run_program(folder, "run", "--until-caught-up", "--json", "-q", seconds=300)
    (told,) = json.loads(ended.stdout)["result"]["snapshots"]
    assert ended.returncode == 0 and (told["lane"], told["number"], told["rows"], told["usable"]) == (
        "lake.plain",
        1,
        6,
        True,
    )
    shop.reach(40)
    taken = run_program(folder, "snapshot", "public.items", "--json", "-q", seconds=300)
    assert json.loads(taken.stdout)["result"][0]["number"] == 2
    shown = run_program(folder, "status", seconds=300)
    assert "lake.plain: checkpoint 2 of " in shown.stdout
    found = shop.replay_lane(tmp_path / "before", from_snapshot=True)[0]
    left = leave_files_of_kills(folder)
    gone = run_program(folder, "forget", "public.items", "1", "--yes", "--vacuum", seconds=300)
    assert gone.returncode == 0 and "lake.plain, checkpoint 2" in gone.stdout, gone.stdout + gone.stderr
    assert not any(path.exists() for path in left)
    for number in (1, 2):
        table = folder / "log" / "_replicator" / "snapshots" / "shop" / "lake.plain" / str(number) / "lake" / "then"
        assert 1 not in DeltaTable(str(table)).to_pyarrow_table()["k1"].to_pylist()
    assert len(shop.replay_lane(tmp_path / "after", from_snapshot=True)[0]) == len(found) - 1


def leave_files_of_kills(folder: Path) -> list[Path]:
    """Files of a killed first checkpoint of another lane, and of a killed replay with a copied checkpoint."""
    home = folder / "log" / "_replicator" / "snapshots" / "shop"
    replay = folder / "state" / "shop" / "replays" / "lake.again"
    replay.mkdir(parents=True)
    (replay / "asked.json").write_text(json.dumps({"lane": "lake.plain", "into": "again", "policy": None}))
    left = [home / "lake.other" / "draft", replay / "begun"]
    for path in left:
        shutil.copytree(home / "lake.plain" / "1" / "lake", path / "lake")
    return left


@pytest.mark.slow
def test_daemon_stores_checkpoints_and_truncates_its_log(tmp_path: Path) -> None:
    """Its lanes and the log continue during and after it."""
    shop, folder = make_shop(tmp_path), tmp_path / "shop"
    shop.config("plain", ", retention: 1 milliseconds", port=find_free_port())
    shop.record(20)
    program = start_program(folder, "run", "-q")
    try:
        first = wait_for_status(folder, lambda said: said["snapshots"] and said["snapshots"][0]["number"] == 1)
        assert first["snapshots"][0]["rows"] == 6 and first["snapshots"][0]["error"] is None
        deadline = time.monotonic() + 120
        while (left := DeltaTable(str(folder / "log")).to_pyarrow_table(columns=["offset"]).num_rows) > 1:
            assert time.monotonic() < deadline, left
            time.sleep(0.5)
        shop.record(40)
        at = first["lanes"][1]["position"]["cdc.public.items"]["0"]
        wait_for_status(folder, lambda said: list_positions(said) == {at + 20})
    finally:
        program.send_signal(signal.SIGTERM)
        assert program.wait(120) == 0
    assert shop.replay_lane(tmp_path / "begun", from_snapshot=True)[0] == read_canonical_rows(folder / "lake" / "plain")


def list_positions(said: dict[str, Any]) -> set[int]:
    return {lane["position"]["cdc.public.items"]["0"] for lane in said["lanes"]}


def wait_for_status(folder: Path, is_so: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Waits until the status fulfils the condition, and returns it."""
    deadline = time.monotonic() + 200
    while True:
        said = json.loads(run_program(folder, "status", "--json", "-q", seconds=200).stdout)["result"]
        if said["running"] and is_so(said):
            return dict(said)
        assert time.monotonic() < deadline, said
        time.sleep(0.5)
