"""`replicator schema`: the JSON Schema of the config."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from paths import PROJECT

from replicator.cli import main

FILES = pytest.mark.parametrize(
    ("options", "name"), [((), "schema.json"), (("--environment",), "environments/schema.json")], ids=["config", "overlay"]
)


@FILES
def test_schema_is_the_shipped_file(options, name):
    done = CliRunner().invoke(main, ["schema", "-c", "nowhere.yaml", *options])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == (PROJECT / "config" / name).read_text()


@FILES
def test_schema_is_the_result_of_json(options, name):
    said = json.loads(CliRunner().invoke(main, ["schema", "--json", *options]).stdout)
    schema = json.loads((PROJECT / "config" / name).read_text())
    assert said == {"command": "schema", "ok": True, "summary": schema["title"], "result": schema, "error": None}


def test_help_says_how_an_editor_uses_it():
    said = CliRunner().invoke(main, ["schema", "--help"]).stdout
    assert "# yaml-language-server: $schema=./schema.json\n" in said and "history" in said


@pytest.mark.parametrize("option", [["--environment"], ["-q"], ["-c", "other.yaml"]])
def test_option_in_front_of_a_subcommand_is_refused(option):
    done = CliRunner().invoke(main, ["schema", *option, "history", "orders"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Put the options behind 'history'." in done.stderr


def test_variables_in_front_of_a_subcommand_are_not_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("REPLICATOR_CONFIG", str(tmp_path / "nowhere.yaml"))
    done = CliRunner().invoke(main, ["schema", "history", "orders"])
    assert done.exit_code == 2 and "nowhere.yaml" in done.stderr
