"""The program over the events of an outbox, into the store of events, beside programs that emit their own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from support.cli_program import parse_answer, run_program
from support.next_layer import run_until_caught_up

from replicator.cli import main

CONFIG = """\
pipeline: shop
sources:
  outbox: {format: debezium_outbox, transport: archive, path: ./archive}
sinks:
  lake: {kind: delta, path: ./lake}
dead_letters: {path: ./letters}
event_store: STORE
tables:
  - match: outbox.event.*
    source: outbox
    to: [{sink: lake}, {sink: event_store}]
http: {address: "127.0.0.1:0"}
"""
PROJECTION = (
    "projections: {totals: {sql: ./config/totals.sql, inputs: {events: event_store}, sink: lake, refresh: manual}}\n"
)
TOTALS = """\
SELECT aggregate_id AS id, max(event_version) AS version, count(*) AS events
FROM events WHERE aggregate_type = 'order' GROUP BY aggregate_id
"""
SOURCE = {"connector": "postgresql", "name": "cdc", "db": "shop", "schema": "public", "table": "outbox", "txId": 9}


def of_table(number: int, payload: object, of: int | None, kind: str = "order") -> Mapping[str, Any]:
    """A row of the outbox, as its table has it."""
    row = {"id": f"t{number}", "aggregatetype": kind, "aggregateid": of, "type": "Placed", "payload": json.dumps(payload)}
    source = {**SOURCE, "ts_us": 1_700_000_000_000_000 + number}
    return {"topic": "cdc.public.outbox", "value": {"before": None, "after": row, "op": "c", "source": source}}


def make_routed_event(number: int, payload: object, of: int | None, kind: str = "order") -> Mapping[str, Any]:
    """An event, as EventRouter makes it; in every seventh it leaves out the type."""
    headers = {"id": f"r{number}", **({"eventType": "Paid"} if number % 7 else {})}
    return {"topic": f"outbox.event.{kind}", "key": str(of), "value": payload, "headers": headers}


def make_events(numbers: range) -> list[Mapping[str, Any]]:
    """Events of two kinds of aggregates in both forms, some of them twice, and some that are none of the store's."""
    made = []
    for number in numbers:
        kind = "payment" if number % 5 == 0 else "order"
        made += [
            of_table(number, {"n": number, "who": "é"}, number % 3, kind),
            make_routed_event(number, {"n": number}, number % 3),
        ]
        made += [make_routed_event(number, {"n": number}, number % 3)] if number % 4 == 0 else []
    return [*made, of_table(numbers.start + 900, ["no", "object"], 1), of_table(numbers.start + 950, {}, None)]


def archive(folder: Path, numbers: range) -> None:
    """A file of records."""
    lines = []
    for offset, one in enumerate(make_events(numbers), 1000 * numbers.start):
        texts = {of: json.dumps(one[of]) if of in one else None for of in ("key", "value")}
        headers = [[name, text] for name, text in one.get("headers", {}).items()]
        known = {
            "topic": one["topic"],
            "partition": 0,
            "offset": offset,
            "timestamp": [1, 1_700_000_000_500],
            "headers": headers,
        }
        lines.append(json.dumps({**known, **texts}) + "\n")
    (folder / "archive").mkdir(exist_ok=True)
    (folder / "archive" / f"{numbers.start:04}.jsonl").write_text("".join(lines))


def list_expected_ids(*several: range) -> dict[str, dict[str, list[str]]]:
    """The ids of the events of each aggregate, by its type, in the order of their records."""
    found: dict[str, dict[str, list[str]]] = {}
    for numbers in several:
        for number in numbers:
            kind = "payment" if number % 5 == 0 else "order"
            pairs = [(kind, f"t{number}"), *([("order", f"r{number}")] if number % 7 else [])]
            for of, event_id in pairs:
                found.setdefault(of, {}).setdefault(str(number % 3), []).append(event_id)
    return found


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a project whose store is at that place."""
    (tmp_path / "config").mkdir()
    monkeypatch.chdir(tmp_path)

    def make_project(store: str, more: str = "") -> Path:
        (tmp_path / "config" / "replicator.yaml").write_text(CONFIG.replace("STORE", store) + more)
        (tmp_path / "config" / "totals.sql").write_text(TOTALS)
        return tmp_path

    return make_project


def run_command(*arguments: str) -> Any:
    done = CliRunner().invoke(main, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    return parse_answer(done)["result"]


def list_stored_ids(kind: str) -> dict[str, list[str]]:
    """The ids that `replicator events` has of a type, by aggregate; versions are 1, 2, 3 and so on."""
    found: dict[str, list[tuple[int, str]]] = {}
    for event in run_command("events", kind):
        found.setdefault(event["aggregate_id"], []).append((event["event_version"], event["event_id"]))
    for versions in found.values():
        assert sorted(number for number, _ in versions) == list(range(1, len(versions) + 1))
    return {of: [event_id for _, event_id in sorted(versions)] for of, versions in found.items()}


def group_by_aggregate(kind: str, of: Mapping[str, list[str]]) -> dict[str, tuple[list[str], list[str]]]:
    """By aggregate the events of each form in their order: topics are read side by side."""
    return {key: ([e for e in ids if e[0] == "t"], [e for e in ids if e[0] == "r"]) for key, ids in of.items()}


def check_all(*several: range) -> None:
    for kind, of in list_expected_ids(*several).items():
        found = {key: [e for e in ids if e[0] in "tr"] for key, ids in list_stored_ids(kind).items()}
        assert group_by_aggregate(kind, found) == group_by_aggregate(kind, of)


def goes_through(folder: Path, first: str, second: str) -> None:
    """Two engines in turns, and a program in between."""
    archive(folder, range(1, 30))
    run_until_caught_up(folder, first)
    check_all(range(1, 30))
    event = run_command("events", "order", "1", "--limit", "1")[0]
    assert event["metadata"]["partition"] == "0" and event["event_data"]["n"].isdigit()
    before = len(list_stored_ids("order")["1"])
    stored = run_command("emit", "order", "1", "Told", "--data", '{"by": "hand"}', "--expected-version", str(before))
    assert stored["event_version"] == before + 1
    archive(folder, range(30, 40))
    run_until_caught_up(folder, second)
    check_all(range(1, 30), range(30, 40))
    assert list_stored_ids("order")["1"][before] == stored["event_id"] and len(list_stored_ids("order")["1"]) > before + 1
    letters = run_command("dlq", "list")
    codes = [one["code"] for one in letters if one["lane"] == "event_store.order"]
    assert codes and set(codes) == {"NO_EVENT"} and len(codes) == 2 * 2 + len([n for n in range(1, 40) if n % 7 == 0])


def test_rejected_event_is_stored_after_its_remedy(project):
    """Either under a new id, after the service writes a valid event, or by a retry under a higher limit."""
    folder = project("{path: ./events}", "limits: {columns: 20}\n")
    many = {f"f{number}": number for number in range(30)}

    def sends(name, *rows):
        record = {"partition": 0, "timestamp": [1, 1_700_000_000_500], "headers": [], "key": None}
        texts = (json.dumps({**record, **row, "offset": at, "value": json.dumps(row["value"])}) for at, row in rows)
        (folder / "archive").mkdir(exist_ok=True)
        (folder / "archive" / f"{name}.jsonl").write_text("".join(f"{text}\n" for text in texts))

    sends("a", (0, of_table(1, ["no", "object"], 1)), (1, of_table(2, many, 2)))
    run_until_caught_up(folder, "local")
    letters = [one for one in run_command("dlq", "list") if one["lane"] == "event_store.order"]
    assert [one["code"] for one in letters] == ["NO_EVENT"] * 2
    for letter in letters:
        [explained] = run_command("dlq", "explain", letter["event_id"])
        assert "write this event again under a new id. If the reason names a limit" in explained["what_to_do"]
    config = folder / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("columns: 20", "columns: 200"))
    assert run_program(folder, "dlq", "replay").returncode == 1, "one of the two is rejected again"
    sends("b", (2, of_table(3, {"an": "object"}, 1)))
    run_until_caught_up(folder, "local")
    assert list_stored_ids("order") == {"1": ["t3"], "2": ["t2"]}


@pytest.mark.slow
def test_events_into_a_lake(project):
    folder = project("{path: ./events}", PROJECTION)
    goes_through(folder, "local", "local")
    assert run_command("refresh")[0]["rows"] == 3
    rows = DeltaTable(str(folder / "lake" / "totals")).to_pyarrow_table().to_pylist()
    assert {row["id"]: row["version"] for row in rows} == {of: len(ids) for of, ids in list_stored_ids("order").items()}
    shutil.rmtree(folder / "state")  # What is remembered on this machine: everything is read again, below the positions.
    run_until_caught_up(folder, "local")
    check_all(range(1, 30), range(30, 40))


@pytest.mark.slow
def test_second_read_keeps_stored_events(project):
    folder = project("{path: ./events}")
    archive(folder, range(1, 8))
    run_until_caught_up(folder, "local")
    before = list_stored_ids("order")
    # The archive begins at a later offset than the topic did.
    done = run_program(folder, "lanes", "resync", "event_store.order", "--accept-missing", "--yes", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [one["position"] for one in run_command("status")["lanes"] if one["id"] == "event_store.order"] == [{}]
    run_until_caught_up(folder, "local")
    assert [bool(one["position"]) for one in run_command("status")["lanes"]] == [True] * 4 and list_stored_ids(
        "order"
    ) == before


@pytest.mark.slow
@pytest.mark.postgres
def test_events_into_postgresql(project, postgres_server):
    dsn = postgres_server.url(_name(postgres_server.database()))
    goes_through(project(f"{{dsn: '{dsn}'}}"), "local", "local")


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.timeout(900)
def test_events_on_spark(project, postgres_server, tmp_path):
    """Local and Spark runs alternate, into a lake and into PostgreSQL."""
    goes_through(project("{path: ./events}"), "spark", "local")
    for name in ("archive", "state", "lake", "letters"):
        shutil.rmtree(tmp_path / name)
    dsn = postgres_server.url(_name(postgres_server.database()))
    goes_through(project(f"{{dsn: '{dsn}'}}"), "local", "spark")


def _name(dsn: str) -> str:
    return dsn.rpartition("dbname=")[2]


@pytest.mark.slow
def test_event_log_rebuilds_the_other_targets(project):
    """`replay` without a lane rebuilds all targets except the event store. Checkpoints cover these targets only."""
    folder = project("{path: ./events}")
    config = folder / "config" / "replicator.yaml"
    text = config.read_text().replace(
        "sinks:\n", "sinks:\n  log: {kind: event_log, path: ./log, snapshots: {after_records: 5}}\n"
    )
    config.write_text(text.replace("[{sink: lake}, ", "[{sink: lake}, {sink: log}, "))
    archive(folder, range(1, 12))
    run_until_caught_up(folder, "local")
    assert [one["lane"] for one in run_command("snapshot", "outbox.event.order")] == ["lake.order"]
    assert sorted(one.name for one in (folder / "log" / "_replicator" / "snapshots" / "shop").iterdir()) == [
        "lake.order",
        "lake.payment",
    ]
    before = list_stored_ids("order")
    done = run_program(folder, "replay", "outbox.event.order", "--json")
    assert done.returncode == 0 and parse_answer(done)["result"]["lane"] == "lake.order"
    assert list_stored_ids("order") == before


REFUSED = [
    (("query", "event_store.order"), "cannot be queried by table"),
    (("drop", "event_store.order", "--yes"), "cannot be dropped"),
    (("drop", "event_store", "--yes"), "cannot be dropped"),
    (("replay", "outbox.event.order", "--lane", "event_store.order"), "cannot be rebuilt"),
    (("snapshot", "outbox.event.order", "--lane", "event_store.order"), "cannot be rebuilt"),
    (("forget", "outbox.event.order", "t1", "--yes"), "which never removes events"),
    (("backfill", "outbox.event.order"), "backfills need"),
]


@pytest.mark.parametrize(("command", "why"), REFUSED, ids=lambda said: said[0] if isinstance(said, tuple) else "")
def test_commands_for_mirrors_are_refused(project, command, why):
    """The error names the event store and a next step, and nothing changes."""
    project("{path: ./events}")
    done = CliRunner().invoke(main, [*command, "--json"])
    answer = parse_answer(done)
    assert done.exit_code == 2 and why in answer["error"]["sentence"] and answer["error"]["next_step"]
