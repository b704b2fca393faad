"""Every command on a running pipeline, and the commands of docs/how-to/use-the-local-servers.md."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.stack.postgres import choose_installation

from .daemon import Daemon
from .shops import LOGS, MIRRORS, await_caught_up, await_equal, read_source_rows
from .stack import PROJECT, TABLES, World, run_python

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

LANES = {f"{m}.{t}" for m in MIRRORS for t in TABLES} | {f"{log}.shop" for log in LOGS}
EMAIL = "lise@example.com"
LOAD = """
import sys
from replicator.notebook import load_table
first = load_table("customers", version=1)
now = load_table("lake.customers", where="email = 'lise@example.com'")
print(first.num_rows, now.num_rows, now.column("city").to_pylist()[0], "_cdc_op" in now.column_names)
"""
METRICS = {
    "replicator_records_consumed_total": {"source"},
    "replicator_records_ignored_total": {"source", "kind"},
    "replicator_changes_total": {"lane", "outcome"},
    "replicator_apply_duration_seconds_count": {"lane"},
    "replicator_freshness_seconds": {"lane"},
    "replicator_lag_records": {"source"},
    "replicator_lane_up": {"lane"},
    "replicator_build_info": {"version"},
}
"""Name and labels, as the public contract has them."""


@pytest.fixture
def at_work(shipped_world: World) -> Iterator[tuple[World, Daemon]]:
    """The shipped pipeline, caught up, with a customer that this test inserted and updated."""
    world, daemon = shipped_world, shipped_world.daemon()
    await_equal(world, daemon)
    world.execute("DELETE FROM customers WHERE email = %s", EMAIL)
    world.execute("INSERT INTO customers (first_name, last_name, email, city) VALUES ('Lise', 'M', %s, 'Wien')", EMAIL)
    await_equal(world, daemon)
    world.execute("UPDATE customers SET city = 'Berlin' WHERE email = %s", EMAIL)
    await_equal(world, daemon)
    await_caught_up(world, daemon)
    yield world, daemon
    assert daemon.stop() == 0


def test_read_only_commands(at_work: tuple[World, Daemon]) -> None:
    world, daemon = at_work
    status = world.get_result("status")
    assert status["running"] and status["ready"] and {lane["id"] for lane in status["lanes"]} == LANES
    assert set(world.get_result("lanes", "list")[0]) >= {"id", "table", "policy", "config"}
    assert world.get_result("check")["resolved"]["pipeline"] == "shop"
    check_queries(world)
    check_plans(world)
    check_doctor(world)
    check_notebook(world)
    check_page(daemon)


def check_queries(world: World) -> None:
    now = world.get_result("query", "customers", "--where", f"email = '{EMAIL}'")
    assert [row["city"] for row in now] == ["Berlin"]
    target = world.get_result("query", "target.customers", "--where", f"email = '{EMAIL}'")
    assert [row["city"] for row in target] == ["Berlin"]
    versions = [
        world.get_result("query", "lake.customers", "--version", str(v), "--where", f"email = '{EMAIL}'") for v in (0, 1)
    ]
    assert versions[0] == [] and len(world.get_result("query", "customers", "--version", "1")) >= 5
    assert len(world.get_result("query", "customers", "--limit", "3")) == 3
    csv = world.program("query", "customers", "--csv", "--limit", "2").stdout.splitlines()
    assert csv[0].startswith('"id","first_name"') and len(csv) == 3
    refused = world.answer("query", "target.customers", "--version", "1", code=1)
    assert "no earlier versions" in refused["error"]["sentence"]
    assert world.answer("query", "nosuch", code=2)["error"]["next_step"]


def check_plans(world: World) -> None:
    assert {plan["lane"] for plan in world.get_result("plan")} >= LANES - {f"{log}.shop" for log in LOGS}
    plans = {plan["lane"]: plan for plan in world.get_result("plan", "customers")}
    assert set(plans) == {f"{mirror}.customers" for mirror in MIRRORS}
    for plan in plans.values():
        assert plan["keys"] == ["id"] and plan["columns"]["email"] == "string" and plan["problem"] is None
        assert any("MERGE" in text for text in plan["stages"].values())


def check_doctor(world: World) -> None:
    found = world.get_result("doctor")
    assert {one["severity"] for one in found} <= {"ok", "warning"}
    text = " ".join(one["subject"] + one["sentence"] for one in found)
    for subject in ("source shop", *(f"sink {sink}" for sink in (*MIRRORS, *LOGS))):
        assert subject in text
    broken = json.dumps(world.target.replace("target_password", "wrong"))
    answer = json.loads(world.program("doctor", "--json", "--set", f"sinks.target.dsn={broken}").stdout)
    bad = [one for one in answer["result"] if one["severity"] == "error"]
    assert bad and all("target" in one["subject"] and one["next_step"] for one in bad)
    assert "wrong" not in json.dumps(answer)


def check_notebook(world: World) -> None:
    rows, mine, city, stored = run_python(LOAD, world.folder, world.environ).split()
    assert int(rows) >= 5 and (mine, city, stored) == ("1", "Berlin", "True")


def check_page(daemon: Daemon) -> None:
    assert daemon.page("/livez") == daemon.page("/readyz") == "ok\n"
    assert "lake.customers" in daemon.page("/")
    samples = [re.fullmatch(r"(\w+)(?:\{(.*)\})?", name) for name in daemon.metrics()]
    found = {m[1]: set(re.findall(r'(\w+)="', m[2] or "")) for m in samples if m}
    for name, labels in METRICS.items():
        # A counter has no sample before it has counted: here nothing need have been ignored yet.
        assert found.get(name, labels if name == "replicator_records_ignored_total" else None) == labels, name
    up = {name: value for name, value in daemon.metrics().items() if name.startswith("replicator_lane_up")}
    assert len(up) == len(LANES) and set(up.values()) == {1.0}


def test_commands_that_change_the_pipeline(at_work: tuple[World, Daemon]) -> None:
    world, daemon = at_work
    world.get_result("lanes", "pause", "target.customers")
    daemon.await_status("target.customers", "paused")
    world.execute("UPDATE customers SET city = 'Stockholm' WHERE email = %s", EMAIL)
    await_equal(world, daemon, mirrors=("lake", "datalake"))
    assert read_city(world, "target") == "Berlin"
    assert daemon.metrics()['replicator_lane_up{lane="target.customers"}'] == 0
    world.get_result("lanes", "resume", "target.customers")
    await_equal(world, daemon)
    before = daemon.lane("lake.customers")["counts"]["applied"]
    world.get_result("lanes", "resync", "lake.customers", "--yes")
    daemon.await_condition(lambda: daemon.lane("lake.customers")["counts"]["applied"] > before, "the lane loads again")
    await_equal(world, daemon)
    await_caught_up(world, daemon)
    assert "target.orders" in world.answer("lanes", "pause", "nosuch", code=2)["error"]["next_step"]
    at_end = daemon.lane("target.orders")["position"]
    topic, offset = world.topic("orders"), daemon.lane("target.orders")["position"][world.topic("orders")]["0"]
    world.get_result("lanes", "skip", "target.orders", "--until", f"{topic}:0:{offset}")
    daemon.await_status("target.orders", "running")
    assert daemon.lane("target.orders")["position"] == at_end


def read_city(world: World, sink: str) -> str:
    found = world.get_result("query", f"{sink}.customers", "--where", f"email = '{EMAIL}'")
    return str(found[0]["city"])


# -- docs/how-to/use-the-local-servers.md ------------------------------------------------------------------------------


def list_printed_commands(path: Path) -> list[str]:
    """Commands in shell blocks that begin with psql or curl, without those for the reader's own servers."""
    blocks = re.findall(r"^```(?:bash|sh|shell|console)\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.split(" ")[0] in ("psql", "curl") and "//connect:" not in line]


def test_commands_of_the_documentation_page(at_work: tuple[World, Daemon]) -> None:
    world, daemon = at_work
    commands = list_printed_commands(PROJECT / "docs" / "how-to" / "use-the-local-servers.md")
    assert {command.split(" ")[0] for command in commands} == {"psql", "curl"}
    newest = str(max(key for (key,) in read_source_rows(world, "customers")))
    for command in commands:
        output = run_shell(world, replace_ports(world, daemon, command))
        assert output.strip(), command
        if "customers ORDER BY id" in command:
            assert EMAIL in output and newest in output, command
        if command.startswith("curl") and "connectors" in command:
            assert json.loads(output)["connector"]["state"] == "RUNNING"


def replace_ports(world: World, daemon: Daemon, command: str) -> str:
    """The printed command with the ports of this test's servers. Ports of psql services are appended."""
    ports = world.stack.home.ports
    command = re.sub(r"service=(\w+)", lambda m: f'"{m[0]} port={getattr(ports, m[1])}"', command)
    shipped = {
        "5433": ports.source,
        "5434": ports.datalake,
        "5435": ports.target,
        "8083": ports.connect,
        "29092": ports.kafka,
    }
    known = {**shipped, "8090": int(daemon.address.rpartition(":")[2])}
    return re.sub(r"(127\.0\.0\.1|localhost):(\d+)", lambda m: f"{m[1]}:{known[m[2]]}", command)


def run_shell(world: World, command: str) -> str:
    """The output of a command. PostgreSQL's client is also found next to its server."""
    path = f"{world.environ['PATH']}:{choose_installation().bin}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=world.folder, capture_output=True, text=True, timeout=60,
        env={**world.environ, "PATH": path, "PAGER": "cat", "PGSERVICEFILE": str(PROJECT / "config/pg_service.conf")},
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout
