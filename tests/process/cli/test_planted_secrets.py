"""Secrets in every key of a config that can hold one: no command prints them, also after errors."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from support.cli_program import run_program

NAMES = "abcdefghijklmnopqrstuvwxyz"
SECRETS = {name: f"pl4nted-{name}-w0rd" for name in NAMES}
NOWHERE = "127.0.0.1:1"
CONFIG = """\
pipeline: shop
sources:
  secured:
    format: debezium_json
    transport: kafka
    bootstrap_servers: NOWHERE
    topics: [cdc.public.orders]
    security:
      security.protocol: SASL_SSL
      sasl.mechanism: PLAIN
      sasl.username: <a>
      sasl.password: <b>
      ssl.key.password: <c>
    database: {dsn: "postgresql://reader:<u>@NOWHERE/shop", publication: cdc, slot: cdc}
  tokens:
    format: debezium_avro
    transport: kafka
    bootstrap_servers: NOWHERE
    topics: [cdc.public.items]
    registry: {url: "http://NOWHERE", user: reader, password: <d>}
    security:
      security.protocol: SASL_SSL
      sasl.mechanism: OAUTHBEARER
      sasl.oauthbearer.method: oidc
      sasl.oauthbearer.client.id: replicator
      sasl.oauthbearer.client.secret: <e>
      sasl.oauthbearer.token.endpoint.url: http://NOWHERE/<f>
  asked:
    {format: rows, transport: query, dsn: "postgresql://reader:<g>@NOWHERE/shop", table: public.sales, cursor_column: id}
  compared: {format: rows, transport: snapshots, dsn: "postgresql://reader:<h>@NOWHERE/shop", table: public.stock}
  files:
    format: dms_csv
    transport: files
    path: s3://nowhere/files
    storage: {endpoint: "http://NOWHERE", allow_http: true, access_key_id: <i>, secret_access_key: <j>, session_token: <k>}
sinks:
  url: {kind: postgres, dsn: "postgresql://writer:<l>@NOWHERE/d"}
  other: {kind: postgres, dsn: "postgresql://writer@NOWHERE/d?password=<m>&sslpassword=<n>"}
  raw: {kind: event_log, dsn: "postgresql://writer:<o>@NOWHERE/d"}
  lake:
    kind: delta
    path: s3://nowhere/lake
    storage: {endpoint: "http://NOWHERE", allow_http: true, access_key_id: <p>, secret_access_key: <q>}
dead_letters: {dsn: "postgresql://letters:<v>@NOWHERE/d", patience: 1 second}
event_store: {dsn: "postgresql://events:<w>@NOWHERE/d"}
tables:
  - match: public.orders
    source: secured
    columns: {email: {mask: hmac, key: "<x>-long-enough"}, phone: {mask: truncate, key: "<y>-long-enough", length: 2}}
    to: [{sink: url}, {sink: raw}, {sink: lake, columns: {name: {mask: hmac, key: "<z>-long-enough"}}}]
  - {match: public.parts, source: secured, to: [{sink: url}]}
  - {match: public.items, source: tokens, to: [{sink: other}]}
  - {match: public.sales, source: asked, keys: [id], to: [{sink: url}]}
  - {match: public.stock, source: compared, keys: [id], to: [{sink: url}]}
  - {match: public.users, source: files, keys: [id], schema: {id: int64}, to: [{sink: other}]}
http: {address: "127.0.0.1:0", token: <r>}
spark: {spark.hadoop.fs.s3a.secret.key: <s>, spark.ssl.keyPassword: <t>}
"""
CONFIG = re.sub(r"<(\w)>", lambda found: SECRETS[found[1]], CONFIG.replace("NOWHERE", NOWHERE))
COMMANDS = (
    ("check",),
    ("doctor",),
    ("plan",),
    ("plan", "public.orders"),
    ("status",),
    ("query", "orders"),
    ("dlq", "list"),
    ("dlq", "replay"),
    ("schema", "history", "orders"),
    ("inspect", "secured"),
    ("history", "public.orders", "4711"),
    ("replay", "public.orders"),
    ("backfill", "public.parts"),
    ("events", "Customer"),
    ("emit", "Customer", "C101", "CustomerCreated", "{}"),
    ("lanes", "list"),
    ("lanes", "pause", "url.orders"),
    ("drop", "public.orders", "--yes"),
    ("forget", "public.users", "4711", "--yes"),
    ("support-bundle", "logged.zip", "--log", "config/replicator.yaml"),
    ("run", "--until-caught-up", "--timeout", "2"),
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    (folder / "config").mkdir()
    (folder / "config" / "replicator.yaml").write_text(CONFIG)
    return folder


def list_secrets(text: str) -> list[str]:
    return [secret for secret in SECRETS.values() if secret in text]


def read_written_files(folder: Path) -> str:
    """The content of all files that the program has written."""
    config = folder / "config"
    files = [path for path in folder.rglob("*") if path.is_file() and config not in path.parents]
    return "".join(path.read_bytes().decode(errors="replace") for path in files) + "".join(map(read_zip, files))


def read_zip(path: Path) -> str:
    """The content of a zip file."""
    if path.suffix != ".zip":
        return ""
    with zipfile.ZipFile(path) as packed:
        return "".join(packed.read(name).decode() for name in packed.namelist())


def test_config_is_valid(project: Path) -> None:
    """Otherwise the secrets would not be used."""
    assert run_program(project, "check").returncode == 0
    assert all(secret in CONFIG for secret in SECRETS.values())


FORMS = [
    pytest.param((), id="plain", marks=pytest.mark.long),  # Less than with `-v`.
    pytest.param(("--json",), id="json", marks=pytest.mark.long),
    pytest.param(("-v",), id="more"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_shows_a_secret(project: Path, command: tuple[str, ...], form: tuple[str, ...]) -> None:
    done = run_program(project, *command, *form, REPLICATOR_PATIENCE="1")
    assert done.stdout + done.stderr
    assert not list_secrets(done.stdout + done.stderr)
    assert not list_secrets(read_written_files(project))


LINES = [line for line in CONFIG.splitlines() if "pl4nted" in line]
QUOTED = re.compile(r'"?[^\s",:]*(?:://[^\s",]*)?pl4nted-(\w)-w0rd[^\s",}]*"?')
BROKEN = {
    "no YAML": lambda line: f"{line} }}]: '",
    "another key": lambda line: line.replace(": ", "_x: ", 1) if line[:6] != "      " else re.sub(r"^ +\w", "      _", line),
    "another type": lambda line: QUOTED.sub(r"[pl4nted-\1-w0rd, {pl4nted-\1-w0rd: pl4nted-\1-w0rd}]", line),
}


MISTAKES = [
    pytest.param(mistake, line, marks=() if mistake == "another type" or number % 3 == turn else pytest.mark.long)
    for turn, mistake in enumerate(BROKEN)
    for number, line in enumerate(LINES)
]
"""Each value is of another type, and some lines are broken in another way; all lines in every way in a long run."""


@pytest.mark.parametrize(("mistake", "line"), MISTAKES, ids=lambda text: text.partition(": ")[0].strip())
def test_no_config_error_shows_a_secret(tmp_path: Path, mistake: str, line: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "replicator.yaml").write_text(CONFIG.replace(line, BROKEN[mistake](line)))
    done = run_program(tmp_path, "check")
    assert done.returncode == 2 and not list_secrets(done.stdout + done.stderr)
