"""`replicator drop`: names, confirmation, refusals, and what remains."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.cli_program import PROGRAM, run_program, start_program

from adapters.delta.folders import LocalFolder
from adapters.delta.lake import Lake
from adapters.sinks.delta.lanes import DROP_MARK
from adapters.stack.layout import find_free_port
from replicator.application.state_folder import InstanceLock

PARTS = {"table", "schemas", "positions", "register entry"}


def list_remaining_files(project: Path, name: str) -> list[str]:
    """The paths of a table's remaining files, without locks and the event log."""
    found = [str(path.relative_to(project)) for folder in ("lake", "state") for path in (project / folder).rglob("*.*")]
    return [path for path in found if name in path and not path.endswith(".lock") and "cdc_events" not in path]


def read_register(project: Path) -> str:
    (file,) = (project / "state" / "shop" / "sources").glob("*.json")
    return file.read_text()


def remove_products(project: Path) -> None:
    """Changes the config to another table."""
    config = project / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("public.*", "public.orders"))


@pytest.mark.parametrize("name", ["products", "public.products", "lake.products", "lake.public.products"])
def test_drop_removes_everything_and_the_next_run_reloads_the_table(run_json, project, name):
    before = run_json("query", "products")["result"]
    said = run_json("drop", name, "--yes")
    assert (said["command"], said["ok"], said["summary"], said["error"]) == ("drop", True, "lake.products: dropped", None)
    result = said["result"]
    assert (result["lane"], result["table"]) == ("lake.products", "public.products")
    assert result["config"] == "config/replicator.yaml:11"
    assert {one["what"] for one in result["belongings"]} >= PARTS
    assert not list_remaining_files(project, "products") and "lake.products" not in read_register(project)
    assert run_json("query", "orders")["result"] and run_json("drop", "lake.products", "--yes", code=2)
    done = run_program(project, "run", "--until-caught-up", "-q")
    assert done.returncode == 0, done.stderr
    assert drop_times(run_json("query", "products")["result"]) == drop_times(before)


def drop_times(rows):
    return [{name: value for name, value in row.items() if name != "_cdc_applied_at"} for row in rows]


def test_drop_with_engine_spark_starts_no_spark(run_json, project, monkeypatch):
    def session(_options):
        raise AssertionError("drop asked for a Spark session")

    monkeypatch.setattr("adapters.spark.session.open_session", session)
    run_json("drop", "products", "--yes", "--set", "engine=spark")
    assert not list_remaining_files(project, "products")


def test_table_in_a_catalog_that_the_engine_cannot_reach_is_not_dropped(run_cli, project):
    """Otherwise its name in the catalog would point to nothing. Other sinks have no such names."""
    config = project / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("path: ./lake}", "path: ./lake, schema: shop}", 1))
    result = run_cli("drop", "products", "--yes")
    assert result.exit_code == 2 and "lake.products is registered in the catalog of the engine 'spark'" in result.stderr
    assert "--set engine=spark" in result.stderr and "(config/replicator.yaml:5)" in result.stderr
    assert list_remaining_files(project, "lake/products")


def test_table_that_the_config_no_longer_names_is_dropped(run_json, project):
    remove_products(project)
    said = run_json("drop", "products", "--yes")["result"]
    assert (said["lane"], said["table"], said["config"]) == ("lake.products", None, None)
    assert run_program(project, "run", "--until-caught-up", "-q").returncode == 0
    assert not list_remaining_files(project, "products")


def test_output_on_a_terminal(run_cli, project, monkeypatch):
    monkeypatch.setattr("replicator.cli.session.is_on_terminal", lambda: True)
    result = run_cli("drop", "products", input="n\n")
    assert result.exit_code == 1 and "Delete all of this of lake.products? [y/N]" in result.output
    assert re.search(rf"^  table +{project}/lake/products$", result.output, re.M)
    assert "The config contains the lane (config/replicator.yaml:11): the next start creates" in result.output
    assert list_remaining_files(project, "lake/products")
    result = run_cli("drop", "products", input="y\n")
    assert result.exit_code == 0 and result.output.endswith("lake.products: dropped\n")
    assert not list_remaining_files(project, "products")


def test_drop_without_a_terminal_needs_yes(run_cli, run_json, project):
    result = run_cli("drop", "products", input="y\n")
    assert result.exit_code == 2 and result.stdout == ""
    assert "lake.products was not dropped: a confirmation needs a terminal" in result.stderr and "--yes" in result.stderr
    said = run_json("drop", "products", code=2)
    assert said["result"]["lane"] == "lake.products" and said["error"]["code"] == 2
    assert {one["what"] for one in said["result"]["belongings"]} >= PARTS
    assert list_remaining_files(project, "lake/products")


def test_drop_on_a_real_terminal(project):
    master, slave = pty.openpty()
    child = subprocess.Popen([PROGRAM, "drop", "orders"], cwd=project, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    said = b""
    while b"[y/N]" not in said and select.select([master], [], [], 60)[0]:
        said += os.read(master, 4096)
    os.write(master, b"y\n")
    assert child.wait(60) == 0 and not list_remaining_files(project, "orders")
    os.close(master)


@pytest.mark.parametrize(
    ("name", "words", "step"),
    [
        ("raw", "raw is an event log and cannot be dropped", "remove the sink from the config"),
        ("raw.recorded", "raw.recorded is an event log and cannot be dropped", ""),
        ("productz", "no sink has a target 'productz'", "Did you mean 'products'?"),
        ("lake.productz", "no sink has a target 'lake.productz'", "lanes list"),
        ("_replicator", "no sink has a target", ""),
        ("..", "no sink has a target", ""),
        ("lake...", "no sink has a target", ""),
        ("", "no sink has a target", ""),
        ("lake.", "no sink has a target", ""),
    ],
)
def test_names_without_a_target_are_refused(run_json, project, name, words, step):
    before = list_remaining_files(project, "")
    said = run_json("drop", name, "--yes", code=2)["error"]
    assert words in said["sentence"] and step in said["next_step"]
    assert list_remaining_files(project, "") == before


def test_table_of_another_lane_with_the_same_name_is_refused(run_json, project):
    shutil.copytree(project / "lake", project / "copy")
    sinks = "sinks.copy={kind: delta, path: ./copy}"
    assert run_json("drop", "products", "--yes", "--set", sinks)["result"]["lane"] == "lake.products"
    run_json("drop", "copy.products", "--yes", "--set", sinks, code=2)
    assert (project / "copy" / "products").is_dir()


def test_table_in_two_sinks_needs_the_name_of_the_sink(run_json, project):
    config = project / "config" / "replicator.yaml"
    text = config.read_text().replace("  raw:", "  second: {kind: delta, path: ./second}\n  raw:")
    config.write_text(text.replace("{sink: lake}]", "{sink: lake}, {sink: second}]"))
    assert run_program(project, "run", "--until-caught-up", "-q").returncode == 0
    said = run_json("drop", "products", "--yes", code=2)["error"]
    assert "'products' matches several targets" in said["sentence"]
    assert said["next_step"] == "Name one of them: lake.products, second.products."
    run_json("drop", "second.products", "--yes")
    assert run_json("query", "lake.products")["result"] and not (project / "second" / "products").exists()
    assert run_json("drop", "products", "--yes")["result"]["lane"] == "lake.products"


def test_target_of_another_table_with_the_same_name_stays(run_json, project):
    """Of two tables `orders`, the first has the target. Only its full name drops it."""
    archive = project / "archive"
    text = (archive / "cdc.public.orders.jsonl").read_text().replace("cdc.public.orders", "cdc.sales.orders")
    (archive / "cdc.sales.orders.jsonl").write_text(text.replace('\\"schema\\":\\"public\\"', '\\"schema\\":\\"sales\\"'))
    config = project / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("public.*", '"*.*"'))
    run_program(project, "run", "--until-caught-up", "-q")
    assert "sales.orders" in read_register(project)
    said = run_json("drop", "sales.orders", "--yes", code=2)["error"]
    assert "both go to orders in sink lake" in said["sentence"]
    assert run_json("query", "orders")["result"]
    assert run_json("drop", "public.orders", "--yes")["result"]["lane"] == "lake.orders"


def test_table_that_no_lane_wrote_is_refused(run_json, project):
    write_deltalake(str(project / "lake" / "mine"), pa.table({"a": [1]}))
    (project / "lake" / "notes").mkdir()
    for name in ("mine", "lake.mine", "notes"):
        assert "no sink has a target" in run_json("drop", name, "--yes", code=2)["error"]["sentence"]
    assert (project / "lake" / "mine").is_dir() and (project / "lake" / "notes").is_dir()


def test_killed_drop_is_reported_and_repeated(run_cli, run_json, project, monkeypatch):
    def kill(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LocalFolder, "clear", kill)
        assert run_cli("drop", "products", "--yes").exit_code == 130
    assert [path for path in list_remaining_files(project, "products") if path.endswith(DROP_MARK)]
    lanes = {lane["id"]: lane for lane in run_json("status")["result"]["lanes"]}
    assert "half dropped" in lanes["lake.products"]["error"] and lanes["lake.orders"]["error"] is None
    done = run_program(project, "run", "--until-caught-up", "-q")
    assert done.returncode == 4 and "`replicator drop lake.products` removes the rest" in done.stderr + done.stdout
    assert "half dropped" in run_json("lanes", "resync", "lake.products", "--yes", code=4)["error"]["sentence"]
    run_json("drop", "products", "--yes")
    assert not list_remaining_files(project, "products")
    assert run_program(project, "run", "--until-caught-up", "-q").returncode == 0
    assert list_remaining_files(project, "products"), "loaded again"


def test_drop_is_refused_while_another_instance_writes_the_target(run_json, project):
    """A daemon of this pipeline that does not answer, and one with another state folder that holds the lane."""
    lock = InstanceLock(project / "state" / "shop", "shop")
    lock.acquire()
    assert "Another instance of pipeline shop runs" in run_json("drop", "products", "--yes", code=5)["error"]["sentence"]
    lock.release()
    from replicator.ports.frames import Lane

    lane = Lane("lake.products", "shop", "recorded", "public.products", "lake", "products", "scd1")
    lane_lock = Lake.from_path(str(project / "lake")).lock(lane)
    said = run_json("drop", "products", "--yes", code=5)["error"]
    assert "already written by another instance" in said["sentence"] and "Stop that instance" in said["next_step"]
    lane_lock.release()
    assert list_remaining_files(project, "lake/products")


@pytest.mark.slow
def test_drop_while_the_daemon_runs(run_json, project):
    """Targets of the daemon are refused. A target that is no longer in the config is dropped."""
    config = project / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{find_free_port()}"))
    remove_products(project)
    program = start_program(project, "run")
    deadline = time.monotonic() + 60
    while [lane["status"] for lane in run_json("status")["result"]["lanes"]] != ["running"] * 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    said = run_json("drop", "orders", "--yes", code=5)["error"]
    assert "the daemon is running and writes lake.orders" in said["sentence"] and "Stop the daemon" in said["next_step"]
    assert run_json("drop", "products", "--yes")["ok"] and not list_remaining_files(project, "products")
    program.send_signal(signal.SIGTERM)
    assert program.wait(60) == 0
    assert run_json("query", "orders")["result"]
