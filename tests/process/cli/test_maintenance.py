"""`replicator compact` and `replicator vacuum`: names, reports and refusals."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from support.cli_program import run_program

from adapters.sinks.postgres.lanes import PostgresLanes
from replicator.local_files import FileLock
from replicator.ports.sink import SinkFeatures
from replicator.wiring.components import ConfiguredComponents

ALL = {"raw", "lake.products", "lake.orders", "dead_letters"}


def append_again(table: Path) -> int:
    """Rewrites a table so that there are files to vacuum. Returns the number of unneeded files."""
    for _ in range(2):
        DeltaTable(str(table)).update({"_event_id": '"_event_id"'})
    needed = len(DeltaTable(str(table)).file_uris())
    return len(list(table.glob("*.parquet"))) - needed


def test_all_tables_are_compacted_by_default(run_json, run_cli):
    said = run_json("compact")
    assert (said["command"], said["ok"], said["summary"]) == ("compact", True, "4 tables compacted")
    assert {one["target"] for one in said["result"]} == ALL
    assert all(one["done"]["after"] <= one["done"]["before"] for one in said["result"])
    told = run_cli("compact", "raw")
    assert told.stdout == "1 table compacted\n" and told.stderr.startswith("raw: "), told.output


@pytest.mark.parametrize("name", ["products", "public.products", "lake.products"])
def test_table_is_vacuumed_by_each_of_its_names(run_json, project, name):
    spare = append_again(project / "lake" / "products")
    assert spare > 0
    (dry,) = run_json("vacuum", name, "--retain", "0 hours", "--dry-run")["result"]
    assert dry == {"target": "lake.products", "done": {"files": spare}, "skipped": None, "error": None}
    (kept,) = run_json("vacuum", name)["result"]
    assert kept["done"] == {"files": 0}, "7 days, by default"
    (done,) = run_json("vacuum", name, "--retain", "0 hours")["result"]
    assert done["done"] == {"files": spare}
    assert len(list((project / "lake" / "products").glob("*.parquet"))) == 1
    assert run_json("query", "products")["result"]


def test_short_retention_is_a_warning(run_cli):
    said = run_cli("vacuum", "products", "--retain", "1 hour")
    assert said.exit_code == 0 and "warning: --retain is shorter than the 7 days" in said.stderr
    assert "warning" not in run_cli("vacuum", "products", "--retain", "7 days").stderr
    assert "warning" not in run_cli("vacuum", "products").stderr


def test_short_retention_is_refused_while_the_daemon_runs(run_json, project, monkeypatch):
    monkeypatch.setattr(ConfiguredComponents, "ask_daemon", lambda _: {"lanes": []})
    said = run_json("vacuum", "--retain", "30 minutes", code=5)
    assert "the daemon is running" in said["error"]["sentence"] and "1 hour" in said["error"]["next_step"]
    run_json("vacuum", "--retain", "1 hour")
    run_json("vacuum", "--retain", "0 hours", "--dry-run")


@pytest.mark.parametrize("lock", ["lock", "replays/lake.again.lock"])
def test_short_retention_is_refused_while_another_command_writes(run_json, project, lock):
    """A backfill without a daemon, or a replay. They have no address to ask."""
    state = project / "state" / "shop"
    (state / "replays" / "lake.again").mkdir(parents=True)
    (state / "replays" / "lake.again" / "asked.json").touch()
    spare = append_again(project / "lake" / "products")
    with FileLock(state / lock):
        said = run_json("vacuum", "products", "--retain", "30 minutes", code=5)
        assert str(os.getpid()) in said["error"]["sentence"] and said["error"]["next_step"]
        run_json("vacuum", "products", "--retain", "1 hour")
        run_json("vacuum", "products", "--retain", "0 hours", "--dry-run")
    assert run_json("vacuum", "products", "--retain", "0 hours")["result"][0]["done"] == {"files": spare}


def test_unknown_name_is_refused_before_any_change(run_json, run_cli):
    said = run_json("compact", "products", "lake.order", code=2)
    assert said["error"]["sentence"] == "there is no target 'lake.order'"
    assert said["error"]["next_step"].startswith("Did you mean 'lake.orders'? The targets are: ")
    wrong = run_cli("vacuum", "products", "--retain", "a week")
    assert wrong.exit_code == 2 and "'a week' is not a duration" in wrong.output


def test_failing_table_does_not_stop_others(run_json, project):
    log = project / "lake" / "orders" / "_delta_log"
    for file in log.glob("*"):
        file.write_text("no commit") if file.is_file() else None
    said = run_json("compact", code=1)
    assert not said["ok"] and said["error"]["sentence"]
    by_name = {one["target"]: one for one in said["result"]}
    assert set(by_name) == ALL and by_name["lake.orders"]["error"] and by_name["lake.products"]["done"]


def test_table_that_does_not_exist_yet_is_skipped(run_json, project):
    config = project / "config" / "replicator.yaml"
    config.write_text(
        config.read_text().replace("{sink: lake}", "{sink: lake, into: 'other_{1}'}").replace("public.*", "^public.(.*)$")
    )
    (one,) = run_json("vacuum", "lake.other_orders")["result"]
    assert one == {"target": "lake.other_orders", "done": None, "skipped": "there is no table yet", "error": None}


def test_postgresql_tables_are_not_compacted(run_json, monkeypatch):
    """The server does it itself. A vacuum reports no count of deleted files."""

    class Server:
        vacuum = PostgresLanes.vacuum
        vacuumed = 0

        @property
        def features(self):
            return SinkFeatures(policies=frozenset(), vacuum=self.vacuum)

        def state(self, lane):
            return lane

        def end_versions(self, _):
            Server.vacuumed += 1

        def close(self):
            pass

    monkeypatch.setattr(ConfiguredComponents, "open_sink", lambda *_: Server())
    (one,) = run_json("compact", "products")["result"]
    assert one["skipped"] == "its server does this itself"
    (one,) = run_json("vacuum", "products", "--dry-run")["result"]
    assert one["done"] == {"files": None} and not Server.vacuumed
    (one,) = run_json("vacuum", "products")["result"]
    assert one["done"] == {"files": None} and Server.vacuumed == 1


def test_daemon_vacuums_by_schedule(project):
    """By the schedule of the sink, or of an entry for its table."""
    for folder in ("lake", "state"):
        shutil.rmtree(project / folder)
    config = project / "config" / "replicator.yaml"
    every, own = "path: ./lake, vacuum_every: 1 day, vacuum_retain: 8 days}", "to: [{sink: lake, vacuum_every: 0 days}]"
    text = config.read_text().replace("path: ./lake}", every)
    config.write_text(text.replace("http:", f"  - {{match: public.orders, source: recorded, {own}}}\nhttp:"))
    stale = [project / "lake" / name / "part-that-died.parquet" for name in ("products", "orders")]
    for file in stale:
        file.parent.mkdir(parents=True)
        file.write_bytes(b"rows")
        os.utime(file, (time.time() - 864_000,) * 2)
    done = run_program(project, "run", "--until-caught-up", "--json", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [file.exists() for file in stale] == [False, True]
