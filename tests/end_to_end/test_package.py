"""The installed package in an empty folder: from a database to its copies, with what `replicator init` writes."""

from __future__ import annotations

import json
import time
from urllib.request import Request, urlopen

import pytest

from .installed import Installed
from .stack import World, rows

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]


@pytest.fixture
def registered(world: World):
    """The names of connectors that are removed at the end, with their slots."""
    yield world.connectors
    for name in world.connectors:
        world.stack.rest.delete(name)
    world.connectors.clear()


def test_a_database_is_copied_with_what_init_writes(installed: Installed, world: World, registered, tmp_path):
    """Prints what each step took."""
    world.create_shop()
    world.execute("CREATE TABLE public.visits (at timestamptz, page text); INSERT INTO visits VALUES (now(), '/')")
    folder = tmp_path / "mine"
    folder.mkdir()

    def run(*arguments: str):
        began = time.monotonic()
        answer = installed.answer(folder, *arguments)
        print(f"{time.monotonic() - began:5.1f} s  replicator {' '.join(arguments)}")
        return answer

    run("init", "--from", world.source, "--to", "./lake", "--to", world.target)
    connect = world.environment["CONNECT_URL"]
    with (folder / ".env").open("a") as env:
        env.write(f"KAFKA_BOOTSTRAP_SERVERS={world.stack.bootstrap_servers}\nCONNECT_URL={connect}\n")
    [file] = (folder / "connectors").iterdir()
    registered.add(json.loads(file.read_text())["name"])
    as_json = {"Content-Type": "application/json"}
    urlopen(Request(f"{connect}/connectors", file.read_bytes(), as_json)).close()
    run("check")
    run("doctor")
    run("run", "--until-caught-up")
    expected = rows(world.source, "SELECT id, email FROM customers ORDER BY id")
    found = run("query", "lake.customers")
    assert sorted((row["id"], row["email"]) for row in found) == expected
    assert rows(world.target, "SELECT id, email FROM customers ORDER BY id") == expected
    assert [row["page"] for row in run("query", "lake.visits")] == ["/"]
    world.execute("UPDATE customers SET city = 'Hollywood'; INSERT INTO visits VALUES (now(), '/more')")
    deadline = time.monotonic() + 30
    while {row["city"] for row in found} != {"Hollywood"} and time.monotonic() < deadline:
        run("run", "--until-caught-up")
        found = run("query", "lake.customers")
    assert {row["city"] for row in found} == {"Hollywood"}
    assert {city for (city,) in rows(world.target, "SELECT city FROM customers")} == {"Hollywood"}
