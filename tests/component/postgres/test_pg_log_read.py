"""An event log in PostgreSQL gives the same answers as one in a lake, and reports missing records."""

from __future__ import annotations

import random
import re
import threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict
from support.pg_case import fetch_rows
from support.recorded_log import RecordedLog
from support.snapshotted_shop import ENTRIES, CheckpointedShop, equals_model, list_change_times

from adapters.postgres.event_log_reader import INDEX
from adapters.sources.event_log.postgres import PostgresLogSource
from replicator.application.operations import checkpoint, read_side, table_swap
from replicator.application.operations.as_of import resolve_as_of
from replicator.application.operations.change_history import ChangeLogResult, read_audit, read_history
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem
from replicator.domain.policy.plan import CDC_APPLIED_AT
from replicator.domain.position import Position, TopicPartition
from replicator.domain.read_query import InvalidReadQuery
from replicator.domain.timeline import HistoryEntry
from replicator.ports.components import Components, RebuildRequest
from replicator.ports.reads import PageRequest
from replicator.testing.histories import History, make_random_history
from replicator.wiring import configuration, event_logs
from replicator.wiring.components import ConfiguredComponents, build_read_side

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

POLICIES = {"plain": "scd1", "versions": "scd2", "changes": "append"}
SEEDS = [("plain", 1), ("versions", 2), ("changes", 3)]
MORE = [pytest.param(entry, seed, marks=pytest.mark.long) for entry in POLICIES for seed in range(4, 14)]
AT = TopicPartition("cdc.public.items", 0)


class TwoLogs(CheckpointedShop):
    """A shop with two event logs: one in a lake and one in a database."""

    def __init__(self, folder: Path, dsn: str, history: History, entry: str) -> None:
        parts = conninfo_to_dict(dsn)
        url = f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"
        log = f'}}\n  raw_pg: {{kind: event_log, dsn: "{url}"'
        super().__init__(folder, history, f"{{sink: raw_pg}}, {ENTRIES[entry]}", log)

    def with_log(self, *logs: str) -> ConfiguredComponents:
        """Components of a config in which the table has only these event logs."""
        config = (self.folder / "config" / "replicator.yaml").read_text()
        named = ", ".join(f"{{sink: {log}}}" for log in logs)
        assert "{sink: raw}, {sink: raw_pg}" in config
        file = self.folder / "config" / "other.yaml"
        config = config.replace(", snapshots: {every: 1 day, keep: 2}", "")
        file.write_text(config.replace("{sink: raw}, {sink: raw_pg}", named))
        return ConfiguredComponents(configuration.read_config(file, None, ()))


def run_pipeline(rebuild: Components) -> dict[str, Any]:
    rebuild.catch_up()
    return {"records": 0, "applied": 0, "rejected": 0}


def read_changes(parts: ConfiguredComponents, **period: str) -> tuple[pa.Table, ChangeLogResult]:
    with event_logs.open_reader(parts.loaded, "public.items", period) as log:
        return read_audit(log, "public.items", lambda _: None)


def read_key_history(parts: ConfiguredComponents, key: str) -> tuple[list[HistoryEntry], ChangeLogResult]:
    with event_logs.open_reader(parts.loaded, "public.items") as log:
        return read_history(log, "public.items", [key], lambda _: None)


def on_engine(parts: ConfiguredComponents, engine: str) -> ConfiguredComponents:
    return ConfiguredComponents(parts.loaded, replace(parts.setup, engine=engine))


def list_rows(table: pa.Table) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in table.drop_columns([CDC_APPLIED_AT]).to_pylist())


def read_as_of(parts: ConfiguredComponents, name: str, at: datetime | Position) -> pa.Table:
    return read_side.read_target(parts, f"lake.{name}", as_of=at, from_log=True)


@pytest.mark.parametrize(("entry", "seed"), [*SEEDS, *MORE])
def test_database_log_gives_the_same_answers_as_a_lake_log(postgres_dsn: str, tmp_path: Path, entry: str, seed: int) -> None:
    """Random histories are recorded in random pieces. As-of queries at random positions and times are compared, also
    with the model."""
    chance = random.Random(seed)
    history = make_random_history(seed, 40, toast=True, keys=("int",), disorder=chance.choice((0, 0, 6)))
    shop = TwoLogs(tmp_path / "shop", postgres_dsn, history, entry)
    count = len(shop.history.events)
    ends = [*sorted(chance.sample(range(1, count), 2)), count]
    for end in ends:
        shop.reach(end)
    if chance.random() < 0.5:
        fetch_rows(postgres_dsn, f"CREATE INDEX ON cdc_raw.cdc_events {INDEX}")
    lake, database = shop.with_log("raw"), shop.with_log("raw_pg")
    assert shop.parts.find_log("public.items").sink == "raw", "of two logs, the one in the lake is used"
    lane = database.resolve_lanes("public.items")[0]
    assert database.find_log("public.items").sink == "raw_pg"
    (changes, read), (wanted, wanted_read) = (read_changes(one) for one in (database, lake))
    assert changes.equals(wanted) and changes.num_rows and read == wanted_read
    since, until = sorted(at for _, at in chance.sample(list_change_times(history), 2))
    period = {"since": since.isoformat(), "until": until.isoformat()}
    assert read_changes(database, **period) == read_changes(lake, **period)
    [name] = history.table().keys
    keys = {str(e.change.image[name]) for e in history.events if e.change is not None and name in e.change.image}
    for key in sorted(keys)[:4]:
        found, wanted = (read_key_history(one, key) for one in (database, lake))
        assert found == wanted and found[0], key
    there = shop.history.position(count)
    for end in ends[:-1]:
        place = Position({place: at for place, at in shop.history.position(end).items() if at})
        if set(place) == set(there):
            assert resolve_as_of(database, lane, place) == resolve_as_of(lake, lane, place)
            assert list_rows(read_as_of(database, lane.into, place)) == list_rows(read_as_of(lake, lane.into, place))
    for _, moment in chance.sample(list_change_times(shop.history), 3):
        assert resolve_as_of(database, lane, moment) == resolve_as_of(lake, lane, moment)
        found = read_as_of(database, lane.into, moment)
        assert list_rows(found) == list_rows(read_as_of(lake, lane.into, moment)), moment
        assert equals_model(shop.history, POLICIES[entry], moment, found), moment
    run_pipeline(checkpoint.prepare_restored_rebuild(database, RebuildRequest(lane, "again")))
    now = read_side.read_target(database, f"lake.{lane.into}")
    assert list_rows(read_side.read_target(database, "lake.again")) == list_rows(now)
    compared = table_swap.compare_target(database, lane, run_pipeline)
    assert compared["exact"] and compared["same"] == now.num_rows and not compared["differing"]


def make_shop(dsn: str, folder: Path, seed: int = 1) -> tuple[TwoLogs, ConfiguredComponents]:
    """A lane that has caught up, and a config whose only event log is in the database."""
    shop = TwoLogs(folder / "shop", dsn, make_random_history(seed, 40, toast=True, keys=("int",)), "plain")
    shop.reach(len(shop.history.events))
    return shop, shop.with_log("raw_pg")


NAMED = {
    "the beginning": r"lacks the records from \d+ to \d+ of",
    "a partition": "(lacks the records from .* of|no records of)",
}
LOST = {
    "the beginning": '"offset" <= (SELECT min("offset") + 3 FROM cdc_raw.cdc_events)',
    "a partition": '"partition" = (SELECT max("partition") FROM cdc_raw.cdc_events)',
}


@pytest.mark.parametrize("lost", LOST)
def test_log_with_missing_records_is_refused(postgres_dsn: str, tmp_path: Path, lost: str) -> None:
    """As-of queries and rebuilds refuse it, and the error names the missing records."""
    shop, database = make_shop(postgres_dsn, tmp_path)
    lane, place = database.resolve_lanes("public.items")[0], shop.history.position(len(shop.history.events))
    before = list_rows(read_as_of(database, lane.into, place))
    fetch_rows(postgres_dsn, f"DELETE FROM cdc_raw.cdc_events WHERE {LOST[lost]}")
    for act in (
        lambda: read_as_of(database, lane.into, place),
        lambda: checkpoint.prepare_restored_rebuild(database, RebuildRequest(lane, "again")),
    ):
        with pytest.raises((DataLoss, InvalidReadQuery), match=rf"{NAMED[lost]} cdc\.public\.items\[\d+\]"):
            act()
    assert list_rows(read_as_of(shop.with_log("raw"), lane.into, place)) == before


def test_read_api_returns_the_same_from_both_logs(postgres_dsn: str, tmp_path: Path) -> None:
    shop, database = make_shop(postgres_dsn, tmp_path)
    lane, (_, moment) = database.resolve_lanes("public.items")[0], list_change_times(shop.history)[20]
    here, there = build_read_side(database.loaded), build_read_side(shop.with_log("raw").loaded)
    name = f"lake.{lane.into}"
    [target] = [one for one in here.targets() if one.name == name]
    assert target in there.targets()
    wanted = PageRequest(limit=10, as_of=moment, from_log=True)
    page, [key] = here.rows(name, wanted), target.key
    assert page.rows.num_rows and list_rows(page.rows) == list_rows(there.rows(name, wanted).rows)
    one = str(page.rows[key][0].as_py())
    assert here.history(name, [one]).entries == there.history(name, [one]).entries


class Failed(Exception):
    """An error while a batch is applied."""


def test_stopped_or_failed_read_closes_its_connection(postgres_dsn: str) -> None:
    """The error of the reader is raised unchanged."""
    RecordedLog("", dsn=postgres_dsn).append(raw_rows(0, 30))
    source, seen, stop = PostgresLogSource({"dsn": postgres_dsn, "batch_records": 3}), list[int](), threading.Event()

    def stopping(batch: Any) -> None:
        seen.extend(batch.frame["offset"].to_pylist())
        if seen:
            stop.set()

    def failing(batch: Any) -> None:
        if batch.records:
            raise Failed

    source.run(Position(), stopping, stop, once=True)
    assert seen == [0, 1, 2]
    with pytest.raises(Failed):
        source.run(Position(), failing, threading.Event(), once=True)
    source.close()
    left = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    assert fetch_rows(postgres_dsn, left) == [(0,)]


def test_time_has_the_same_position_on_both_engines(postgres_dsn: str, tmp_path: Path) -> None:
    shop, database = make_shop(postgres_dsn, tmp_path)
    lane, (_, moment) = database.resolve_lanes("public.items")[0], list_change_times(shop.history)[5]
    on_spark = on_engine(database, "spark")
    assert resolve_as_of(on_spark, lane, moment) == resolve_as_of(database, lane, moment)


def test_records_deleted_during_a_read_are_data_loss(postgres_dsn: str) -> None:
    """The deleted records come next. A table that was created again is data loss too."""
    log = RecordedLog("", dsn=postgres_dsn)
    log.append(raw_rows(0, 4))
    source, seen, stop = PostgresLogSource({"dsn": postgres_dsn, "batch_records": 2}), list[int](), threading.Event()

    def take(batch: Any) -> None:
        seen.extend(batch.frame["offset"].to_pylist())
        if len(seen) > 4:
            stop.set()
        if seen == [0, 1, 2, 3] and log.position[AT] == 4:
            log.append(raw_rows(4, 9))
            fetch_rows(postgres_dsn, 'DELETE FROM cdc_raw.cdc_events WHERE "offset" < 6')

    with pytest.raises(DataLoss, match=r"Records 4 to 5 of cdc\.public\.items\[0\] are not in the event log"):
        source.run(Position(), take, stop, once=False)
    assert seen == [0, 1, 2, 3]
    again = source.follow_from(Position())
    again.refresh()
    fetch_rows(postgres_dsn, "CREATE TABLE cdc_raw.made AS TABLE cdc_raw.cdc_events")
    fetch_rows(postgres_dsn, "DROP TABLE cdc_raw.cdc_events; ALTER TABLE cdc_raw.made RENAME TO cdc_events")
    with pytest.raises(DataLoss, match="was created again"):
        again.refresh()
    source.close()


def test_read_during_writes_returns_each_record_once(postgres_dsn: str) -> None:
    """The read ends where the log ended at its start. The next read returns the rest."""
    log = RecordedLog("", dsn=postgres_dsn)
    log.append(raw_rows(0, 50))
    source, seen = PostgresLogSource({"dsn": postgres_dsn, "batch_records": 7}), list[int]()

    def take(batch: Any) -> None:
        seen.extend(batch.frame["offset"].to_pylist())
        end = log.position[AT]
        log.append(raw_rows(end, end + 10))

    end = source.end()
    source.read(source.beginning(), end, take, threading.Event())
    assert seen == list(range(50)) and log.position[AT] > 100
    source.read(end, source.end(), lambda batch: seen.extend(batch.frame["offset"].to_pylist()), threading.Event())
    assert seen == list(range(log.position[AT]))
    source.close()


def test_missing_or_unsuitable_log_table_is_refused(postgres_dsn: str) -> None:
    source = PostgresLogSource({"dsn": postgres_dsn})
    with pytest.raises(EnvironmentProblem, match=r"There is no table postgres://.*\.cdc_raw\.cdc_events") as missing:
        source.end()
    assert "tester" not in str(missing.value)
    fetch_rows(postgres_dsn, "CREATE SCHEMA cdc_raw; CREATE TABLE cdc_raw.cdc_events (topic text)")
    with pytest.raises(ConfigProblem, match="is not an event log: it lacks the column"):
        source.end()
    source.close()


def raw_rows(start: int, end: int, topic: str = AT.topic, partition: int = 0) -> pa.Table:
    known = {**dict.fromkeys(RAW.names), "topic": topic, "partition": partition}
    return pa.Table.from_pylist([{**known, "offset": at} for at in range(start, end)], RAW)


TOPICS = [
    "cdc.public.a",
    "cdc.public.A",
    "cdc.public.B",
    "cdc.public.ä",
    "cdc.public.a'b",
    "cdc.public.a%b",
    "cdc.public.a\\b",
]


@pytest.mark.parametrize("indexed", [False, True])
def test_topics_with_similar_names_are_read_separately(
    postgres_server: Any, indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database sorts texts by a language. Each record is read once although it is stored twice, also if it ends a
    fetch."""
    monkeypatch.setattr("adapters.postgres.event_log_reader.FIRST_ROWS", 1)
    monkeypatch.setattr("adapters.postgres.event_log_reader.MOST_ROWS", 3)
    dsn = postgres_server.database(language="de")
    log, wanted = RecordedLog("", dsn=dsn), dict[TopicPartition, range]()
    for number, topic in enumerate(TOPICS):
        for partition in (0, 1, 10):
            there = wanted[TopicPartition(topic, partition)] = range(number, number + 3 + partition)
            log.append(raw_rows(there.start, there.stop, topic, partition))
    fetch_rows(dsn, "INSERT INTO cdc_raw.cdc_events SELECT * FROM cdc_raw.cdc_events")
    if indexed:
        fetch_rows(dsn, f"CREATE INDEX ON cdc_raw.cdc_events {INDEX}")
    for topics in (["*"], *([f"^{re.escape(topic)}\\Z"] for topic in TOPICS)):
        source, seen = PostgresLogSource({"dsn": dsn, "batch_records": 5, "topics": topics}), list[Any]()
        mine = {at: found for at, found in wanted.items() if topics == ["*"] or topics[0] == f"^{re.escape(at.topic)}\\Z"}
        assert dict(source.start()) == {at: found.start for at, found in mine.items()}
        assert dict(source.end()) == {at: found.stop for at, found in mine.items()}
        source.read(
            source.start(),
            source.end(),
            lambda batch, to=seen: to.extend(batch.frame.to_pylist()),
            threading.Event(),
        )
        assert [(row["topic"], row["partition"], row["offset"]) for row in seen] == [
            (at.topic, at.partition, offset) for at in sorted(mine) for offset in mine[at]
        ]
        source.close()


def test_checkpoint_and_spark_rebuild_of_a_database_log_are_refused(postgres_dsn: str, tmp_path: Path) -> None:
    _, database = make_shop(postgres_dsn, tmp_path)
    lane = database.resolve_lanes("public.items")[0]
    with pytest.raises(
        ConfigProblem, match="the event log raw_pg is in a database, for which checkpoints are not supported"
    ):
        checkpoint.take_checkpoint(database, lane)
    on_spark = on_engine(database, "spark")
    with pytest.raises(ConfigProblem, match="and the engine 'spark' cannot read it there"):
        checkpoint.prepare_restored_rebuild(on_spark, RebuildRequest(lane, "again"))
    assert not [*tmp_path.rglob("asked.json")]
