"""Options of `replicator diff` that cannot be used together, before anything is read."""

import json

import pytest
from click.testing import CliRunner

from replicator.cli import main


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--watch 1m --json", "--watch cannot be combined with --json"),
        ("--watch 1m --repair --yes", "--watch cannot be combined with --repair"),
        ("--repair --yes --against log", "leave out --against log"),
        ("--where id=1 --against log", "--where cannot be combined with --against log"),
        ("--rate 9 --against log", "--rate cannot be combined with --against log"),
        ("--anew --against log", "--anew cannot be combined with --against log"),
        ("--watch soon", "is not a duration"),
        ("--rate 0", "0 is not in the range"),
        ("--report missing/diff.html", "there is no folder missing"),
        ("--repair", "nothing was compared: a confirmation needs a terminal"),
    ],
)
def test_options_are_refused(options, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["diff", "public.orders", *options.split()])
    assert done.exit_code == 2 and sentence in done.output, done.output


def test_repair_without_a_terminal_is_an_error_in_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["diff", "public.orders", "--repair", "--json"])
    error = json.loads(done.output)["error"]
    assert (error["code"], error["next_step"]) == (2, "Repeat on a terminal, or add --yes.")
