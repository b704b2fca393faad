"""`replicator init`: what it asks, writes and refuses, for a source that a test describes."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from replicator.cli import main
from replicator.cli import start as start_module
from replicator.domain.errors import EnvironmentProblem
from replicator.ports.source import DiscoveredSource, DiscoveredTable, PasswordNeeded
from replicator.settings.json_schema import render_file
from replicator.wiring import starting_project

SECRET = "hunter2hunter2"
URL = "postgresql://app@db/shop"
SETTINGS = {
    "format": "debezium_json",
    "transport": "kafka",
    "bootstrap_servers": "b:9092",
    "topics": ["shop.public.*"],
    "database": {"dsn": "${SOURCE_DSN}", "publication": "p", "slot": "s"},
}
TABLES = (DiscoveredTable("public.orders", ("id",), 1234, "default"), DiscoveredTable("public.audit", (), 5, "default"))


def discover_fake(url: str, password: str | None) -> Sequence[DiscoveredSource]:
    """Databases at `db` ask for a password. `empty` has no tables, and there is no `gone`."""
    if "@db/" in url and password is None:
        raise PasswordNeeded(f"{url} asks for a password", next_step="Set PGPASSWORD.")
    name = url.rpartition("/")[2]
    if name == "gone":
        raise EnvironmentProblem("no database gone", next_step="Create the database, or correct its name in `dsn`.")
    dsn = f"postgresql://app:{password}@db/{name}"
    return [
        DiscoveredSource(
            "shop",
            f"PostgreSQL at {url}",
            SETTINGS,
            TABLES if name != "empty" else (),
            variables={"SOURCE_DSN": dsn},
            files={"connectors/shop.json": "{}\n"},
            sql=["CREATE PUBLICATION p FOR ALL TABLES;"],
            steps=["curl connect"],
            dsn=dsn,
            identity=name,
        )
    ]


@pytest.fixture(autouse=True)
def _fake_database(monkeypatch: pytest.MonkeyPatch) -> None:
    load = starting_project.load_adapter
    fake = lambda group, name: discover_fake if name == "postgresql" else load(group, name)  # noqa: E731
    monkeypatch.setattr(starting_project, "load_adapter", fake)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, answers: str | None = None) -> Result:
        monkeypatch.setattr(start_module, "is_on_terminal", lambda: answers is not None)
        return CliRunner().invoke(main, ["init", *arguments], input=answers)

    return run


OPEN, TWIN = "postgresql://app@open/shop", "postgresql://app@open/twin"


def test_project_is_written_and_passes_check(run, tmp_path):
    done = run("--from", OPEN)
    assert (done.exit_code, done.stderr) == (0, "")
    assert (tmp_path / "config" / "schema.json").read_text() == render_file(overlay=False)
    assert (tmp_path / "connectors" / "shop.json").read_text() == "{}\n"
    assert "path: ./lake" in (tmp_path / "config" / "replicator.yaml").read_text()
    checked = CliRunner().invoke(main, ["check"])
    assert (checked.exit_code, checked.stderr) == (0, ""), checked.stdout


def test_tables_sql_and_next_steps_are_printed(run):
    assert run("--from", OPEN, "shop").stdout == (
        f"PostgreSQL at {OPEN}\n\n"
        "table          rows (about)  key   replica identity  policy\n"
        "public.orders  1,234         id    default           scd1\n"
        "public.audit   5             none  default           append\n\n"
        "Written: config/replicator.yaml, config/schema.json, connectors/shop.json, .env\n\n"
        "The source still needs, as an administrator:\n"
        "  CREATE PUBLICATION p FOR ALL TABLES;\n\n"
        "Next:\n  cd shop\n  curl connect\n  replicator doctor\n  replicator run\n  replicator query TABLE\n"
    )


def test_json_has_tables_files_sql_and_next_steps(run):
    body = json.loads(run("--from", OPEN, "--json").stdout)
    assert (body["command"], body["ok"], body["summary"]) == ("init", True, "2 tables, 4 files written")
    assert body["result"] == {
        "tables": [
            {
                "source": "shop",
                "table": "public.orders",
                "rows": 1234,
                "key": ["id"],
                "replica_identity": "default",
                "policy": "scd1",
            },
            {
                "source": "shop",
                "table": "public.audit",
                "rows": 5,
                "key": [],
                "replica_identity": "default",
                "policy": "append",
            },
        ],
        "files": ["config/replicator.yaml", "config/schema.json", "connectors/shop.json", ".env"],
        "sql": ["CREATE PUBLICATION p FOR ALL TABLES;"],
        "next": ["curl connect", "replicator doctor", "replicator run", "replicator query TABLE"],
    }


def test_terminal_is_asked_for_source_targets_and_password(run, tmp_path):
    done = run(answers=f"{URL}\n{SECRET}\n./here postgresql://app@open/mirror\n")
    assert done.exit_code == 0, done.output
    assert SECRET not in done.output and "separated by spaces" in done.stderr
    assert "path: ./here" in (tmp_path / "config" / "replicator.yaml").read_text()
    assert f"SOURCE_DSN=postgresql://app:{SECRET}@db/shop\n" in (tmp_path / ".env").read_text()


def test_secrets_are_in_the_env_file_alone_and_its_owner_reads_it(run, tmp_path):
    assert run("--from", URL, "--to", "./lake", answers=f"{SECRET}\n").exit_code == 0
    with_secret = [p for p in tmp_path.rglob("*") if p.is_file() and SECRET in p.read_text()]
    assert with_secret == [tmp_path / ".env"]
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("arguments", "sentence", "step"),
    [
        ([], "--from is missing", "Add --from"),
        (["--from", ""], "--from is missing", "Add --from"),
        (["--from", URL], "asks for a password", "PGPASSWORD"),
        (["--from", "mysql://u@h/d"], "init reads kafka://, postgresql:// and folders, not mysql://", "MariaDB and MySQL"),
        (["--from", "oracle://h"], "not oracle://", "Correct --from"),
        (["--from", "postgresql://app@open/empty"], "has no tables", "another source"),
        (["--from", OPEN, "--to", OPEN], "is the source", "another database"),
        (["--from", OPEN, "--to", TWIN, "--to", TWIN], "is a target already", "Name another"),
        (["--from", OPEN, "--to", "x/lake", "--to", "./x/../x/lake/"], "./x/../x/lake/ is a target already", "Name another"),
        (["--from", OPEN, "--to", "s3://b/l", "--to", "s3://b/l/"], "s3://b/l/ is a target already", "Name another"),
        (["--from", OPEN, "--to", "gs://bucket/lake"], "error: the config would not be valid: sinks.lake.path", ""),
        (["--from", OPEN, "--to", ""], "error: the config would not be valid: sinks.lake.path", ""),
    ],
)
def test_invalid_arguments_are_refused_before_any_write(run, tmp_path, arguments, sentence, step):
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert sentence in done.stderr and step in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "value"), [("SOURCE_DSN", "postgresql://else/where"), ("SOURCE_DSN_FILE", "/run/secret")])
def test_variable_that_would_be_used_instead_of_the_file_is_refused(run, tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    done = run("--from", OPEN)
    assert done.exit_code == 2 and "the environment has another SOURCE_DSN" in done.stderr and value not in done.stderr
    assert not list(tmp_path.iterdir())
    monkeypatch.delenv(name)
    monkeypatch.setenv("SOURCE_DSN", "postgresql://app:None@db/shop")
    assert run("--from", OPEN).exit_code == 0, "the same value"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        (f"postgresql://app:pa#{SECRET}@db/shop", "must be encoded"),
        (f"postgresql://app:pa?{SECRET}@db/shop", "must be encoded"),
        (f"postgresql://app:pa/{SECRET}@db/shop", "must be encoded"),
        (f"postgresql://app:pa@{SECRET}@db/shop", "must be encoded"),
        (f"postgresql://app:pa%{SECRET}@db/shop", "must be encoded"),
        (f"host=db password={SECRET}", "needs the URL"),
        (f"password = {SECRET}", "needs the URL"),
    ],
)
def test_unclear_url_is_refused_and_not_printed(run, tmp_path, url, sentence):
    for arguments in (["--from", url], ["--from", OPEN, "--to", url]):
        done = run(*arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert sentence in done.stderr and SECRET not in done.stderr
    assert not list(tmp_path.iterdir())


def test_several_targets_have_names_and_variables_of_their_own(run, tmp_path):
    targets = ("./a", "s3://bucket/b", "postgresql://app@open/one", "POSTGRES://app@open/two")
    assert run("--from", OPEN, *(word for target in targets for word in ("--to", target))).exit_code == 0
    text = (tmp_path / "config" / "replicator.yaml").read_text()
    assert "to: [{sink: lake}, {sink: lake_2}, {sink: target}, {sink: target_2}]" in text
    variables = [line.partition("=")[0] for line in (tmp_path / ".env").read_text().splitlines()[1:]]
    assert variables == ["SOURCE_DSN", "TARGET_DSN", "TARGET_2_DSN"]


@pytest.mark.parametrize("name", ["config/replicator.yaml", "config/schema.json", ".env", "connectors/shop.json"])
def test_existing_file_is_never_overwritten(run, tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    done = run("--from", OPEN)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {name} exists with another text")
    assert [p.read_text() for p in tmp_path.rglob("*") if p.is_file()] == ["mine"]


def test_blocked_file_or_folder_is_reported_before_any_write(run, tmp_path):
    (tmp_path / ".env").symlink_to("nowhere")
    (tmp_path / "config").write_text("mine")
    assert run("--from", OPEN).stderr.startswith("error: .env, config exist with another text")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".env", "config"]


def test_file_that_cannot_be_written_whole_is_removed(run, tmp_path, monkeypatch):
    def fail(*_: Any) -> None:
        raise OSError(errno.EFBIG, "File too large")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", fail)
        done = run("--from", OPEN)
    assert done.exit_code == 2 and "config/replicator.yaml cannot be written: File too large" in done.stderr
    assert not list((tmp_path / "config").iterdir())
    assert run("--from", OPEN).exit_code == 0


@pytest.mark.parametrize(("folder", "command"), [("a;b c", "cd 'a;b c'"), ("-x", "cd ./-x"), ("shop", "cd shop")])
def test_folder_of_the_next_step_is_quoted(run, folder, command):
    assert json.loads(run("--from", OPEN, "--json", "--", folder).stdout)["result"]["next"][0] == command


def test_files_with_the_same_text_stay(run, tmp_path):
    assert run("--from", OPEN).exit_code == 0
    (tmp_path / "config" / "schema.json").unlink()
    body = json.loads(run("--from", OPEN, "--json").stdout)
    assert body["result"]["files"] == ["config/schema.json"]
    assert "Written: nothing, all files exist already\n" in run("--from", OPEN).stdout


def test_env_file_with_further_variables_stays(run, tmp_path):
    assert run("--from", OPEN).exit_code == 0
    text = f"CONNECT_URL=http://connect:8083\n{(tmp_path / '.env').read_text()}"
    (tmp_path / ".env").write_text(text)
    assert "Written: nothing, all files exist already\n" in run("--from", OPEN).stdout
    assert (tmp_path / ".env").read_text() == text
    (tmp_path / ".env").write_text(text.replace("@db", "@other"))
    assert run("--from", OPEN).stderr.startswith("error: .env exists with another text")


def test_wrong_source_is_refused_before_targets_are_asked_for(run):
    done = run(answers="./missing\n")
    assert (done.exit_code, "Targets" in done.output) == (2, False)
    assert "there is no folder ./missing" in done.stderr


def test_wrong_url_is_called_by_its_option(run):
    gone = "postgresql://app@open/gone"
    assert "correct its name in --from" in run("--from", gone).stderr
    assert "correct its name in --to" in run("--from", OPEN, "--to", gone).stderr
