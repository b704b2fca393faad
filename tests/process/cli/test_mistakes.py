"""Frequent mistakes of operators: one sentence, a remedy, the right exit code, and no traceback."""

from __future__ import annotations

import re

import click
import pytest
from paths import PROJECT

from replicator.cli import main

REPOSITORY = PROJECT
BROKER = "sources={recorded: {format: debezium_json, transport: kafka, bootstrap_servers: '127.0.0.1:1', topics: [t]}}"
SERVER = "sinks.lake={kind: postgres, dsn: 'postgresql://u:s3cret-word@127.0.0.1:1/d'}"
GOLD = "projections={g: {sql: ./g.sql, inputs: {p: lake.products}, sink: lake, keys: [id]}}"
MISTAKES = [
    # command, exit code, words of the sentence, words of what to do
    (["check", "-c", "nowhere.yaml"], 2, "nowhere.yaml: cannot be read", ""),
    (["run", "-c", "nowhere.yaml"], 2, "cannot be read", ""),
    (["check", "--env", "prdo"], 2, "--env prdo", ""),
    (["check", "--set", "engin=local"], 2, "unknown key 'engin'", "did you mean 'engine'"),
    (["check", "--set", "engine"], 2, "is not of the form", ""),
    (["check", "--set", "tables[9].source=a"], 2, "has 1 entry,", ""),
    (["check", "--set", "tables[0].source=recordet"], 2, "unknown source 'recordet'", "did you mean 'recorded'?"),
    (["check", "--set", "tables[0].to[1].sink=lak"], 2, "unknown sink 'lak'", "did you mean 'lake'?"),
    (["check", "--set", "sinks.lake.path=gs://b/x"], 2, "not yet supported", "local folder"),
    (["check", "--set", "http.address=127.0.0.1:99999"], 2, "must be HOST:PORT", ""),
    (["check", "--set", "tables[0].schema={id: int63}"], 2, "'id' of table public.* is declared as 'int63'", "int64"),
    (["check", "--set", "tables[0].schema={a: 'decimal(99,2)', b: int9}"], 2, "'decimal(99,2)'", "'b' of table"),
    (["run", "--set", "tables[0].schema={id: int63}"], 2, "declared as 'int63'", "int64"),
    (["check", "--set", "state=./archive/cdc.public.orders.jsonl"], 2, "state is a file", "name another one"),
    (["run", "--engine", "flink"], 2, "'flink' is not one of", ""),
    (["run", "--set", "sinks.lake.kind=detla"], 2, "unknown value", "did you mean 'delta'?"),
    (
        ["check", "--set", "spark={spark.sql.ansi.enabled: 'no'}"],
        2,
        "'spark.sql.ansi.enabled' is set by replicator",
        "remove it",
    ),
    (
        ["run", "--engine", "spark", "--set", "spark={master: 'local[2]'}"],
        2,
        "'master' is none of Spark's",
        "begin with 'spark.'",
    ),
    (["plan", "customerz"], 2, "no lane has a source table 'customerz'", "public.orders"),
    (
        ["plan", "--set", "sources.recorded.path=./nothing_here"],
        3,
        "nothing_here is not there",
        "Check 'path' of the source",
    ),
    (["query", "productz"], 2, "no sink has a table 'productz'", "Did you mean 'products'?"),
    (["query", "public.productz"], 2, "no sink has a table 'public.productz'", "Did you mean 'products'?"),
    (["query", "customerz"], 2, "no sink has a table 'customerz'", "lanes list"),
    (["query", "lak.products"], 2, "no sink has a table 'lak.products'", ""),
    (["query", "raw.products"], 2, "no table 'products' in this event log", "'cdc_events'"),
    (["query", "lake.customerz"], 2, "customerz", ""),
    (["query", "products", "--version", "999"], 1, "version 999", ""),
    (["query", "products", "--where", "nosuch ="], 2, "cannot be evaluated", "SQL condition"),
    (["query", "products", "--as-of", "yesterday"], 2, "'yesterday' is not a time such as", ""),
    (["query", "products", "--set", SERVER], 3, "not reachable", ""),
    (["lanes", "pause", "lake.products"], 3, "the daemon does not run", "replicator run"),
    (["lanes", "resume", "lake.products"], 3, "the daemon does not run", "replicator run"),
    (["lanes", "resync", "lake.customerz", "--yes"], 2, "there is no lane 'lake.customerz'", "lake.products"),
    (["lanes", "skip", "lake.customerz"], 2, "there is no lane", "lake.products"),
    (["lanes", "skip", "lake.products", "--until", "here"], 2, "'here' is not a position", "TOPIC:PARTITION:OFFSET"),
    (["lanes", "skip", "lake.products", "--until", "{}"], 2, "'{}' is not a position", "TOPIC:PARTITION:OFFSET"),
    (["lanes", "resync", "lake.customerz"], 2, "there is no lane 'lake.customerz'", "lake.products"),
    (["lanes", "skip"], 2, "Missing argument 'LANE'", ""),
    (["check", "--set", GOLD], 2, "names a file that is not there: /", "name the file with its query"),
    (["statsu"], 2, "No such command 'statsu'", ""),
    (["dlq", "list", "--limit", "many"], 2, "'many' is not a whole number", ""),
    (["dlq", "list", "--limit", "-1"], 2, "'-1' is not a whole number", ""),
    (["query", "products", "--limit", "-3"], 2, "'-3' is not a whole number", ""),
    (["query", "products", "--version", "-1"], 2, "'-1' is not a whole number", ""),
    (["query", "products", "--version", str(2**64)], 2, "is not a whole number from 0 to", ""),
    (["query", "products", "--version", str(2**63 - 1)], 1, "it has versions 0 to", ""),
    (["stack", "nonsense"], 2, "No such command 'nonsense'", ""),
]


@pytest.mark.parametrize(
    ("command", "code", "sentence", "step"), MISTAKES, ids=lambda v: " ".join(v) if isinstance(v, list) else ""
)
def test_mistake_is_one_sentence_with_a_remedy(run_cli, command, code, sentence, step):
    result = run_cli(*command)
    assert result.exit_code == code, result.output
    assert sentence in result.stderr and step in result.stderr
    assert "Traceback" not in result.output and "s3cret-word" not in result.output
    if code:
        assert result.stdout == "", "data goes to stdout, errors to stderr"


@pytest.mark.slow
def test_unreachable_broker_is_reported(run_cli):
    """After a wait of some seconds."""
    test_mistake_is_one_sentence_with_a_remedy(
        run_cli, ["plan", "--set", BROKER], 3, "127.0.0.1:1", "Check that the broker is running"
    )


@pytest.mark.parametrize("mistake", [m for m in MISTAKES if m[1] and "'" in m[2]], ids=lambda m: " ".join(m[0]))
def test_mistake_as_json(run_json, mistake):
    command, code, sentence, step = mistake
    said = run_json(*command, code=code)
    assert set(said) == {"command", "ok", "summary", "result", "error"}
    assert said["ok"] is False and said["error"]["code"] == code
    assert sentence in said["error"]["sentence"] and said["summary"] == said["error"]["sentence"]
    assert step in said["error"]["sentence"] + said["error"]["next_step"]


@pytest.mark.parametrize("command", [["nonsense"], [], ["dlq"], ["run", "--nonsense"], ["status", "too", "much"]])
def test_usage_errors_as_json(run_json, command):
    said = run_json(*command, code=2)
    assert set(said) == {"command", "ok", "summary", "result", "error"}
    assert said["ok"] is False and said["summary"] == said["error"]["sentence"] and "--help" in said["error"]["next_step"]


def test_unexpected_exception_is_reported_without_its_text(run_cli, run_json, monkeypatch):
    def boom(*_args, **_options):
        raise ZeroDivisionError("s3cret-word")

    monkeypatch.setattr("replicator.application.operations.read_side.read_target", boom)
    for result in (run_cli("query", "products"), run_cli("query", "products", "--json")):
        assert result.exit_code == 1 and "s3cret-word" not in result.output
        assert "An unexpected ZeroDivisionError was raised." in result.output and "boom" in result.output
    assert run_json("query", "products", code=1)["error"]["code"] == 1


@pytest.mark.parametrize("text", ["pipeline: [", "", "just text", "a: !!python/object:os.system {}", "\x00"])
def test_file_that_is_no_config_is_refused(run_cli, project, text):
    (project / "config" / "replicator.yaml").write_text(text)
    result = run_cli("check")
    assert result.exit_code == 2 and result.stderr.startswith("error: config/replicator.yaml")
    assert len(result.stderr.splitlines()) < 10


def test_all_findings_are_reported_at_once_with_their_lines(run_json, project):
    config = project / "config" / "replicator.yaml"
    config.write_text(config.read_text().replace("sink: lake", "sink: lak").replace("pipeline:", "pipelin:"))
    said = run_json("check", code=2)
    assert [(f["code"], f["line"]) for f in said["result"]] == [("unknown_key", 1), ("unknown_sink", 11)]


def list_advised_commands():
    """The commands in sentences of the program, each with its file."""
    for file in sorted(f for folder in ("adapters", "replicator") for f in (REPOSITORY / folder).rglob("*.py")):
        for words in re.findall(r"`replicator ([^`{\n\"]+)", file.read_text()):
            yield file.name, words.split()


def test_advised_commands_exist():
    found = list(list_advised_commands())
    assert len(found) > 15
    for file, words in found:
        command = main
        for word in words:
            if not isinstance(command, click.Group) or not word.islower():
                break
            command = command.get_command(click.Context(command), word)
            assert command is not None, f"{file}: there is no `replicator {' '.join(words)}`"


def test_lake_that_cannot_be_written_is_reported(run_cli):
    result = run_cli("doctor", "--set", "sinks.lake.path=/proc/lake")
    assert result.exit_code == 3 and "/proc cannot be written" in result.stdout


def test_unreadable_register_is_reported(run_cli, project):
    (file,) = (project / "state" / "shop" / "sources").glob("*.json")
    file.write_text("{")
    for command in (("status",), ("lanes", "list"), ("doctor",)):
        result = run_cli(*command)
        assert result.exit_code == 3 and "Remove the file" in result.output, result.output
