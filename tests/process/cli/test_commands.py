"""The output of each command, as text and as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.cli_program import PROGRAM, WITH_SIGNALS, parse_answer, run_program

from replicator.cli import status as status_command

LANE = {
    "id", "table", "sink", "policy", "status", "position", "lag_records", "lag_seconds", "counts", "error", "next_step",
    "exit_code", "applied_at", "tombstones", "handed", "schemas", "dead_letters", "call",
}  # fmt: skip
LANES = {"lake.orders", "lake.products", "raw.recorded"}


def test_run(caught_up):
    said = json.loads((caught_up / "run.json").read_text())
    assert (said["command"], said["ok"], said["error"]) == ("run", True, None)
    assert {lane["id"] for lane in said["result"]["lanes"]} == LANES
    assert all(set(lane) == LANE for lane in said["result"]["lanes"])
    names = "name records records_per_second position lag_records unread ignored away_since error pace transactions row_loss"
    assert set(said["result"]["sources"][0]) == {*names.split(), "call"}


def test_match_without_tables_is_reported(project):
    config = project / "config" / "replicator.yaml"
    config.write_text(
        config.read_text().replace("http:", "  - {match: public.invoicez, source: recorded, to: [{sink: lake}]}\nhttp:")
    )
    done = run_program(project, "run", "--until-caught-up")
    told = "warning: no table matched public.invoicez (config/replicator.yaml:12); seen: public.orders, public.products\n"
    assert done.returncode == 0 and told in done.stderr and done.stderr.count("no table matched") == 1


def test_check(run_json, run_cli):
    said = run_json("check")
    assert (said["command"], said["ok"], said["error"]) == ("check", True, None)
    assert set(said["result"]) == {"warnings", "hints", "resolved"} and said["result"]["resolved"]["pipeline"] == "shop"
    assert run_cli("check").stdout == "config/replicator.yaml: ok, 1 source, 2 sinks, 1 table entry\n"


def test_check_reports_every_reserved_spark_option(run_json, project):
    """With its line, for either engine, beside every other finding."""
    config = project / "config" / "replicator.yaml"
    lines = len(config.read_text().splitlines())
    options = "spark:\n  spark.sql.caseSensitive: 'no'\n  spark.executor.memory: 4g\n  memory: 4g\nengin: spark\n"
    with config.open("a") as more:
        more.write(options)
    found = run_json("check", code=2)["result"]
    assert [(one["line"] - lines, one["code"]) for one in found] == [
        (2, "engine_option"), (4, "engine_option"), (5, "unknown_key")
    ]  # fmt: skip


def test_status(run_json, run_cli):
    said = run_json("status")
    assert said["summary"] == "pipeline shop is not running, 3 lanes"
    parts = {"pipeline", "running", "ready", "unready", "engine_page", "sources", "lanes", "snapshots", "dead_letters"}
    parts |= {"comparisons"}
    assert set(said["result"]) == parts
    assert {lane["id"] for lane in said["result"]["lanes"]} == LANES
    assert all(set(lane) == LANE and lane["position"] for lane in said["result"]["lanes"])
    assert {line.split()[0] for line in run_cli("status").stdout.splitlines()[4 : 4 + len(LANES)]} == LANES


def test_verbose_status_prints_positions_in_the_syntax_of_skip(run_cli, run_json):
    assert "cdc.public.orders:0:" not in run_cli("status").stdout
    lanes = {lane["id"]: lane["position"] for lane in run_json("status")["result"]["lanes"]}
    end = lanes["lake.orders"]["cdc.public.orders"]["0"]
    assert f"lake.orders  cdc.public.orders:0:{end}" in run_cli("status", "-v").stdout


def test_each_lane_of_an_unreachable_sink_has_its_own_error(run_json):
    server = "sinks.lake={kind: postgres, dsn: 'postgresql://u:p@127.0.0.1:1/d'}"
    for lane in run_json("status", "--set", server)["result"]["lanes"]:
        others = LANES - {lane["id"]}
        assert lane["sink"] == "raw" or lane["error"]
        assert not any(other in (lane["error"] or "") for other in others)


def test_top_without_a_terminal_equals_status(run_cli, run_json):
    assert run_cli("top").stdout == run_cli("status").stdout
    assert run_json("top")["result"] == run_json("status")["result"]


def test_lanes_list(run_json, run_cli):
    said = run_json("lanes", "list")
    assert said["command"] == "lanes list"
    assert {lane["id"] for lane in said["result"]} == LANES
    assert all(set(lane) == {"id", "table", "policy", "config", "status", "dead_letters"} for lane in said["result"])
    assert {lane["config"] for lane in said["result"] if lane["id"].startswith("lake")} == {"config/replicator.yaml:11"}
    listed = dict(line.split() for line in run_cli("lanes", "list").stdout.splitlines())
    assert listed == dict.fromkeys(LANES, "stopped")


def test_lanes_list_shows_the_status_of_the_daemon(run_json, run_cli, monkeypatch):
    report = {"lanes": [{"id": "lake.orders", "status": "suspended", "dead_letters": 1200}]}
    monkeypatch.setattr("replicator.wiring.daemon_client.ask_status", lambda _: report)
    listed = {lane["id"]: (lane["status"], lane["dead_letters"]) for lane in run_json("lanes", "list")["result"]}
    assert listed["lake.orders"] == ("suspended", 1200)
    assert "suspended  1,200 open dead letters\n" in run_cli("lanes", "list").stdout


def test_plan(run_json, run_cli):
    (lane,) = run_json("plan", "products")["result"]
    names = (
        "lane table policy watermark retention shape config keys columns stages problem schema_changes schemas dead_letters"
    )
    assert set(lane) == set(names.split())
    assert (lane["lane"], lane["keys"], lane["problem"]) == ("lake.products", ["sku"], None)
    assert any("MERGE" in text or "merge" in text for text in lane["stages"].values())
    shown = run_cli("plan").stdout
    assert "lake.products" in shown and "event log raw.recorded of source recorded\n3 lanes, with 1 event log\n" in shown
    assert (
        run_json("plan")["summary"] == "3 lanes, with 1 event log" and "event log" not in run_cli("plan", "products").stdout
    )


def test_plan_without_tables_reports_the_reason(run_cli, project):
    for file in (project / "archive").iterdir():
        file.unlink()
    shown = run_cli("plan")
    assert shown.exit_code == 0 and "\n1 lane, with 1 event log\nNo source has a record" in shown.stdout


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        (["snapshot", "orders"], 0, "lake.orders: from the beginning"),
        (["backfill", "orders"], 2, "source recorded"),
        (["forget", "orders", "1", "--yes"], 0, "public.orders of source recorded, one key"),
        (["snapshot", "nowhere"], 2, "'nowhere'"),
    ],
)
def test_table_name_without_schema(run_cli, command, code, told):
    shown = run_cli(*command)
    assert (shown.exit_code, told in shown.output) == (code, True), shown.output


@pytest.mark.parametrize(
    ("match", "told"), [("sales.orders", "there are several tables 'orders'"), ("sales.new", "source recorded")]
)
def test_table_without_records_is_found_by_its_entry(run_cli, project, match, told):
    config = project / "config" / "replicator.yaml"
    config.write_text(
        config.read_text().replace(
            "tables:\n", f"tables:\n  - {{match: {match}, source: recorded, to: [{{sink: lake, into: x}}]}}\n"
        )
    )
    assert told in run_cli("backfill", match.rpartition(".")[2]).output


@pytest.mark.parametrize(("said", "told"), [("3 days", "3 days, 0:00:00"), ("off", "ever")])
def test_plan_shows_the_retention_of_deleted_rows(run_cli, said, told):
    more = ("--set", "defaults.deletes=soft", "--set", f"defaults.tombstone_retention={said}")
    assert f"policy scd1, deleted rows stay, marked, for {told}  key" in run_cli("plan", *more).stdout


def test_plan_of_spark_starts_no_spark(run_json, monkeypatch):
    def session(_options):
        raise AssertionError("plan asked for a Spark session")

    monkeypatch.setattr("adapters.spark.session.open_session", session)
    (lane,) = run_json("plan", "products", "--set", "engine=spark")["result"]
    assert lane["keys"] == ["sku"] and "MERGE INTO `products`" in lane["stages"]["write"]


def test_query(run_json, run_cli):
    said = run_json("query", "lake.products", "--limit", "2")
    assert said["ok"] and len(said["result"]) == 2 and {"sku", "_cdc_op", "_event_id"} <= set(said["result"][0])
    lines = run_cli("query", "products", "--csv").stdout.splitlines()
    assert lines[0].startswith('"sku"') and len(lines) == len(run_json("query", "products")["result"]) + 1
    shown = run_cli("query", "products", "--limit", "1").stdout
    assert "products: 1 row " in shown and "sku" in shown and "_cdc_op" not in shown
    assert "_cdc_op" in run_cli("query", "products", "--all-columns").stdout
    assert list(run_json("query", "products", "--columns", "sku, _cdc_op")["result"][0]) == ["sku", "_cdc_op"]
    assert "Available: sku" in run_json("query", "products", "--columns", "nothing", code=2)["error"]["next_step"]


@pytest.mark.parametrize("words", [("query", "products", "--csv"), ("audit", "products", "--csv"), ("stack", "logs", "-f")])
def test_output_that_is_not_one_object_is_refused_with_json(run_json, words):
    error = run_json(*words, code=2)["error"]
    assert "exclude each other" in error["sentence"] and error["next_step"]


@pytest.mark.parametrize("name", ["public.products", "lake.public.products", "lake.products"])
def test_target_is_found_by_its_source_name(run_json, name):
    assert run_json("query", name)["result"] == run_json("query", "products")["result"]


def test_values_that_look_like_markup_are_printed(capsys):
    import pyarrow as pa

    from replicator.cli.look import print_table

    print_table("a[/b]", pa.table({"x[/y]": ["[/bold] [red]"]}), None)
    shown = capsys.readouterr().out
    assert "a[/b]" in shown and "x[/y]" in shown and "[/bold] [red]" in shown


def test_hidden_rows_are_counted(run_cli, run_json, monkeypatch):
    rows = len(run_json("query", "products")["result"])
    monkeypatch.setattr("replicator.cli.look.MAX_SHOWN", rows - 1)
    shown = run_cli("query", "products").stdout
    assert f"products: the first {rows - 1} rows" in shown and "--limit 0 prints all" in shown
    for whole in (("--limit", "0"), ("--limit", str(rows))):
        assert f"products: {rows} rows" in (said := run_cli("query", "products", *whole).stdout) and "more" not in said
    assert len(run_cli("query", "products", "--csv").stdout.splitlines()) == rows + 1


def test_table_in_a_pipe_is_as_wide_as_the_columns_variable(run_cli, monkeypatch):
    whole = run_cli("query", "products", "--all-columns").stdout
    assert max(map(len, whole.splitlines())) > 100 and "row 1" not in whole
    monkeypatch.setenv("COLUMNS", "60")
    blocks = run_cli("query", "products", "--all-columns").stdout
    assert "\nrow 1\n  sku" in blocks, "a row that does not fit has a line for each value"
    assert len(max(run_cli("query", "products", "--columns", "sku").stdout.splitlines(), key=len)) <= 60


def test_csv_has_lists_and_structs_as_json(capfdbinary):
    import csv
    import decimal
    import io

    import pyarrow as pa

    from replicator.cli.look import write_csv

    nested = [{"a": [1.5, None]}, None]
    prices = pa.array([[decimal.Decimal("1.10")], []], pa.list_(pa.decimal128(5, 2)))
    write_csv(
        pa.table({"id": [1, 2], "tags": [["x,y", "ö"], None], "nested": nested, "prices": prices, "raw": [b"\xff", b"a"]})
    )
    rows = list(csv.reader(io.StringIO(capfdbinary.readouterr().out.decode())))
    assert rows[1:] == [["1", '["x,y", "ö"]', '{"a": [1.5, null]}', '["1.10"]', "ff"], ["2", "", "", "[]", "61"]]


def test_times_that_python_cannot_hold_are_printed(capsys):
    import pyarrow as pa

    from replicator.cli.look import print_table
    from replicator.domain.plain_values import to_rows as _rows

    far = pa.array([2**62, None, 0], pa.int64()).cast(pa.timestamp("us", "UTC"))
    days = pa.array([2**31 - 1, -(2**31), None], pa.int32()).cast(pa.date32())
    pairs = pa.StructArray.from_arrays([far, days], ["a", "b"])
    table = pa.table({"far": far, "day": days, "list": pa.ListArray.from_arrays([0, 2, 2, 3], far), "pair": pairs})
    first, second, third = _rows(table)
    assert first["far"] == first["list"][0] == first["pair"]["a"] == "4611686018427387904 us since 1970"
    assert (second["far"], second["list"], str(third["far"])) == (None, [], "1970-01-01 00:00:00+00:00")
    assert first["day"] == "2147483647 days since 1970"
    assert (third["day"], third["pair"]["b"]) == (None, None)
    print_table("t", table, None)
    assert "4611686018427387904 us since 1970" in capsys.readouterr().out


def test_dlq_list(run_json, run_cli):
    (letter,) = run_json("dlq", "list")["result"]
    names = "event_id lane stage code sentence table key_hash record first_seen last_seen attempts state retry"
    places = "source topic partition offset timestamp headers key"
    assert set(letter) == {*names.split(), *places.split()}
    assert (letter["code"], letter["record"]) == ("MALFORMED", "no record at all")
    assert "MALFORMED" in run_cli("dlq", "list").stdout


def test_stack_commands_use_the_folder_of_the_config(project, run_cli, run_json, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    config = str(project / "config" / "replicator.yaml")
    logs = {row["name"]: row["log"] for row in run_json("stack", "status", "-c", config)["result"]}
    assert "kafka" in logs and all(log.startswith(f"{project}/.embedded/") or "stack" in log for log in logs.values())
    heads, *rows = run_cli("stack", "status", "-c", config).stdout.splitlines()
    assert heads.split() == ["service", "state", "pid", "listens", "on", "log"] and "{" not in "".join(rows)
    assert [row.split()[0] for row in rows] == list(logs)
    nowhere = run_cli("stack", "status", "-c", "config/shop.yaml")
    assert nowhere.exit_code == 2 and "config/shop.yaml: the file does not exist" in nowhere.stderr
    here = {row["name"]: row["log"] for row in run_json("stack", "status")["result"]}
    assert here["kafka"].startswith(f"{tmp_path}/.embedded/")
    Path(here["kafka"]).write_text("started\n")
    assert run_json("stack", "logs")["result"] == ["kafka | started"]


def test_doctor(run_json):
    said = run_json("doctor")
    assert said["ok"] and {d["subject"] for d in said["result"]} >= {"sink lake", "dead letters", "machine"}


REPORT = {
    "pipeline": "shop",
    "running": True,
    "dead_letter_call": {"doing": "writing rejected records", "since": "2026-01-01T00:00:00+00:00", "error": None},
    "sources": [
        {"name": "shop", "away_since": "2026-01-01T00:00:00+00:00", "error": "the broker does not answer"},
        {
            "name": "bulk", "call": {"doing": "reading", "since": "2026-01-01T00:00:00+00:00"},
            "pace": {
                "batch_seconds": 2.5, "input_rows_per_second": 1.0, "processed_rows_per_second": 9.0, "lag_records": 1234
            },
        },
    ],
    "lanes": [
        {
            "id": "target.a_table_with_quite_a_long_name", "table": "public.a_table_with_quite_a_long_name",
            "policy": "scd1", "status": "suspended",
            "lag_records": 1234567, "lag_seconds": 12.3456, "counts": {"applied": 5, "rejected": 1}, "dead_letters": 4321,
            "error": "the [/target] was removed", "next_step": "Run `replicator lanes resync`.",
        },
        {
            "id": "lake.b", "table": "public.b", "policy": "append", "status": "retrying", "lag_records": None,
            "lag_seconds": None, "counts": None, "dead_letters": None, "error": "it is away", "next_step": None,
        },
    ],
}  # fmt: skip


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_status_never_wraps_a_name(width):
    lines = status_command._make_view(REPORT, width).plain.splitlines()
    assert any(line.split()[:1] == ["target.a_table_with_quite_a_long_name"] for line in lines)
    text = "\n".join(lines)
    assert "target.a_table_with_quite_a_long_name is suspended: the [/target] was removed\n  Run `replicator" in text
    assert "lake.b is retrying: it is away" in text
    assert re.search(r"source shop is away since \S+ \S+: the broker does not answer", text)
    assert "source bulk: reading, since 2026-01-01T00:00:00+00:00" in text
    assert "dead-letter store: writing rejected records, since 2026-01-01T00:00:00+00:00: no answer yet" in text
    assert "source bulk: the last batch took 2.5 s, 1 rows/s in, 9 rows/s applied, 1,234 records behind" in text
    assert "1,234,567" in text and "12.3" in text and "4,321" in text
    if width >= 200:
        heads, rule, first = lines[2:5]
        assert len(heads) == len(rule) and first.index("suspended") == heads.index("status")


def test_top_ends_with_ctrl_c(project):
    """On a terminal it runs until it is interrupted."""
    leader, follower = pty.openpty()
    program = [*WITH_SIGNALS, PROGRAM, "top"]
    top = subprocess.Popen(program, cwd=project, stdin=follower, stdout=follower, stderr=subprocess.PIPE)
    os.close(follower)
    seen = b""
    deadline = time.monotonic() + 60
    while b"lake.products" not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([leader], [], [], 1)[0]:
            seen += os.read(leader, 65536)
    top.send_signal(signal.SIGINT)
    deadline = time.monotonic() + 60
    while top.poll() is None:
        assert time.monotonic() < deadline
        if select.select([leader], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):  # it has closed its side
                os.read(leader, 65536)  # what nobody reads would keep it from writing, and so from ending
    assert top.returncode == 0
    assert top.stderr.read() == b""
    os.close(leader)


def test_help_is_quick_and_loads_no_driver():
    code = (
        "import sys, contextlib, io, replicator.cli\n"
        "with contextlib.redirect_stdout(io.StringIO()): replicator.cli.main(['--help'], standalone_mode=False)\n"
        "print([m for m in ('pyarrow', 'pydantic', 'duckdb', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert_quick([PROGRAM, "--help"])


def test_completion_is_quick_and_loads_no_driver(project, monkeypatch):
    monkeypatch.chdir(project)
    code = (
        "import sys, replicator.cli, click.shell_completion as shell\n"
        "found = shell.ShellComplete(replicator.cli.main, {}, 'replicator', '').get_completions(['query'], 'lake')\n"
        "print([one.value for one in found])\n"
        "print([m for m in ('pyarrow', 'pydantic', 'duckdb', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['lake.orders', 'lake.products']\n[]\n"
    shell = ["env", "_REPLICATOR_COMPLETE=bash_complete", "COMP_WORDS=replicator lanes pause r", "COMP_CWORD=3"]
    assert assert_quick([*shell, PROGRAM]) == b"plain,raw.recorded\n"


def assert_quick(command):
    """The output of a command that takes less than 0.3 seconds of processor time."""
    spent = []
    for _ in range(5):
        before = os.times()
        done = subprocess.run(command, capture_output=True, check=True)
        after = os.times()
        spent.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(spent) < 0.3, "seconds of processor time"
    assert done.stderr == b""
    return done.stdout


def test_sqlglot_is_imported_for_conditions_only(project):
    loads = "import sys, replicator.settings as s; from pathlib import Path\n"
    loads += "settings = s.load_settings(Path('config/replicator.yaml')).settings\n"
    loads += (
        "shapes = [lane.row_transforms for lane in settings.resolve_lanes('public.orders')]; print('sqlglot' in sys.modules)"
    )
    file = project / "config" / "replicator.yaml"
    for more, loaded in (("", "False\n"), ("    apply_as_deletes: gone\n", "True\n")):
        file.write_text(file.read_text().replace("    to:", f"{more}    to:"))
        done = subprocess.run([sys.executable, "-c", loads], cwd=project, capture_output=True, text=True, check=False)
        assert done.stdout == loaded, done.stderr


@pytest.mark.slow
def test_log_has_lane_messages_with_verbose_only(project):
    def chatter(*options):
        log = run_program(project, "run", "--until-caught-up", *options).stderr
        return [json.loads(line) for line in log.splitlines() if line.startswith("{")]

    assert not [entry for entry in chatter() if entry["event"] == "lane status"]
    told = [entry for entry in chatter("-v") if entry["event"] == "lane status"]
    assert {entry["now"] for entry in told} == {"catching_up", "running"} and {entry["level"] for entry in told} == {"debug"}


@pytest.mark.slow
def test_second_table_with_the_same_target_is_suspended(project, run_json):
    """The first table keeps the target. The second one is suspended with the line to change, and the others continue."""
    orders = (project / "archive" / "cdc.public.orders.jsonl").read_text().splitlines()
    other = "\n".join(line for line in orders if line.startswith("{")).replace("public", "aside") + "\n"
    (project / "archive" / "cdc.aside.orders.jsonl").write_text(other)
    config = project / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("match: public.*", "match: '*'"))
    before = run_json("query", "orders")["result"]
    for _ in range(2):
        done = run_program(project, "run", "--until-caught-up", "--json")
        said = parse_answer(done)
        assert done.returncode == 2 and "aside.orders both go to orders in sink lake" in said["summary"]
        assert "config/replicator.yaml:11" in said["summary"] + str(said["result"])
        lanes = {lane["id"]: lane["status"] for lane in said["result"]["lanes"]}
        assert lanes == {
            "raw.recorded": "running", "lake.orders": "running", "lake.products": "running",
            "lake.orders (aside.orders)": "suspended",
        }  # fmt: skip
        for words in (("skip", "--until", "cdc.aside.orders:0:1"), ("resync", "--yes")):
            error = run_json("lanes", *words, "lake.orders (aside.orders)", code=2)["error"]
            assert "both go to orders" in error["sentence"], words
    assert run_json("query", "orders")["result"] == before
    assert run_json("query", "orders", "--as-of", "cdc.public.orders:0:0")["result"]
    stored = {lane["id"]: lane for lane in run_json("status")["result"]["lanes"]}
    assert stored["lake.orders"]["table"] == "public.orders" and stored["lake.orders"]["error"] is None
    assert "both go to orders" in stored["lake.orders (aside.orders)"]["error"]
    problems = {plan["table"]: plan["problem"] for plan in run_json("plan", "orders")["result"]}
    assert [table for table, problem in problems.items() if problem] == ["aside.orders"]
