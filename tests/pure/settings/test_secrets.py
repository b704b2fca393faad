"""Secrets: their origins, and that no output shows them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import TypeAdapter, ValidationError

from replicator.ports.options import DatabaseUrl, Dsn, SourceDsn, Strict, is_secret
from replicator.settings import ConfigError, Settings, to_plain_options
from replicator.settings.json_schema import build_config_schema
from replicator.settings.loader import Plugins

SECRET = "hunter2hunter2"
DSN = f"postgresql://u:{SECRET}@h:5432/d"


def test_defaults_and_values_from_the_environment(folder):
    folder.change("    group_id: readers", "    group_id: ${GROUP:-readers}-${SUFFIX:-1}")
    assert folder.load().settings.sources["shop"].group_id == "readers-1"
    folder.environ |= {"GROUP": "writers", "SUFFIX": ""}
    assert folder.load().settings.sources["shop"].group_id == "writers-1"


def test_numbers_from_the_environment(folder):
    folder.change("  depth: 64", "  depth: ${DEPTH}")
    folder.environ["DEPTH"] = "12"
    assert folder.load().settings.limits.depth == 12
    folder.environ["DEPTH"] = SECRET
    assert SECRET not in str(folder.only())


def test_value_of_a_variable_is_plain_text(folder):
    folder.change("    group_id: readers", "    group_id: ${GROUP}")
    folder.environ |= {"GROUP": "${OTHER} [a]: {b}", "OTHER": "no"}
    assert folder.load().settings.sources["shop"].group_id == "${OTHER} [a]: {b}"


def test_escaped_reference_is_text(folder):
    folder.change("    group_id: readers", "    group_id: a-$${GROUP}")
    assert folder.load().settings.sources["shop"].group_id == "a-${GROUP}"


@pytest.mark.parametrize("text", ["${", "${}", "${A B}", "${1A}", "${A:-${B}}", "${A-x}"])
def test_malformed_references_are_refused(folder, text):
    line = folder.change("    group_id: readers", f"    group_id: '{text}'")
    finding = folder.only()
    assert (finding.code, finding.line) == ("reference", line)


def test_all_unset_variables_are_reported_at_once(folder):
    folder.change("    dsn: postgresql://u:p@h:5432/d", "    dsn: ${TARGET_DSN}")
    folder.write(folder.file.read_text().replace("./lake\n", "${LAKE}\n").replace("local\n", "${ENGINE}\n"))
    assert [f.message.split()[-1] for f in folder.findings()] == ["ENGINE", "LAKE", "TARGET_DSN"]


def test_secret_from_a_file(folder, tmp_path):
    folder.change("    dsn: postgresql://u:p@h:5432/d", "    dsn: postgresql://u:${PASSWORD}@h/d")
    (tmp_path / "password").write_text(f"{SECRET}\n")
    folder.environ["PASSWORD_FILE"] = str(tmp_path / "password")
    assert folder.load().settings.sinks["target"].dsn.get_secret_value() == f"postgresql://u:{SECRET}@h/d"


UNCLEAR = [f"{start}hunter2secret" for start in ("x@", "12/", "x?", "x#", "x ", "%zz")]


@pytest.mark.parametrize("password", UNCLEAR)
def test_variable_with_an_unencoded_password_is_reported(folder, password):
    line = folder.change("    dsn: postgresql://u:p@h:5432/d", "    dsn: postgresql://${WRITER}:${PASSWORD}@h/${DATABASE}")
    folder.environ |= {"WRITER": "u", "PASSWORD": password, "DATABASE": "d"}
    finding = folder.only()
    assert (finding.code, finding.line) == ("dsn", line) and "hunter2secret" not in str(finding)
    assert "too early, from PASSWORD; percent-encode" in str(finding)
    folder.environ["PASSWORD"] = quote(password, safe="")
    assert folder.load().settings.sinks["target"].dsn.get_secret_value() == f"postgresql://u:{quote(password, safe='')}@h/d"


@pytest.mark.parametrize("kind", [Dsn, SourceDsn, DatabaseUrl])
@pytest.mark.parametrize("password", UNCLEAR)
def test_every_url_refuses_an_unencoded_password(kind, password):
    with pytest.raises(ValidationError, match="percent-encode"):
        TypeAdapter(kind, config={"hide_input_in_errors": True}).validate_python(f"postgresql://u:{password}@h/d")


def test_every_dsn_type_checks_its_password():
    checks = {repr(one.func) for kind in (Dsn, SourceDsn, DatabaseUrl) for one in kind.__metadata__}
    urls = [kind for name, kind in every_secret() if name.endswith(".dsn")]
    assert urls and all(any(check in repr(kind) for check in checks) for kind in urls)


@pytest.mark.parametrize(
    "url", ["postgresql://h/d?options=-c%20a=b@c", "postgresql://u:a:b%2F@h:1/d", "postgresql:///d?host=/run/@x"]
)
def test_at_sign_outside_of_a_password_is_accepted(url):
    assert TypeAdapter(Dsn).validate_python(url).get_secret_value() == url


@pytest.mark.parametrize("dsn", ["${VARIABLE}", "postgresql://u:${VARIABLE}@h/d"])
@pytest.mark.parametrize("value", ["", " "])
def test_empty_variable_of_a_secret_is_reported(folder, dsn, value):
    line = folder.change("    dsn: postgresql://u:p@h:5432/d", f"    dsn: {dsn}")
    folder.environ["VARIABLE"] = value
    finding = folder.only()
    assert (finding.message, finding.line) == ("sinks.target.dsn finds the variable VARIABLE empty", line)


def test_variable_and_its_file_together_are_refused(folder, tmp_path):
    folder.change("    dsn: postgresql://u:p@h:5432/d", "    dsn: ${TARGET_DSN}")
    (tmp_path / "dsn").write_text(DSN)
    folder.environ |= {"TARGET_DSN": DSN, "TARGET_DSN_FILE": str(tmp_path / "dsn")}
    finding = folder.only()
    assert finding.message == "sinks.target.dsn finds both TARGET_DSN and TARGET_DSN_FILE set"


@pytest.mark.parametrize("called", ["TARGET_DSN", "target_dsn"])
def test_secret_from_the_folder_of_secrets(folder, tmp_path, called):
    folder.change("    dsn: postgresql://u:p@h:5432/d", "    dsn: ${TARGET_DSN:-unsafe}")
    (tmp_path / called).write_text(f"{DSN}\n")
    folder.environ["REPLICATOR_SECRETS_DIR"] = str(tmp_path)
    assert folder.load().settings.sinks["target"].dsn.get_secret_value() == DSN
    folder.environ["TARGET_DSN"] = DSN
    assert folder.only().message == f"sinks.target.dsn finds both TARGET_DSN and {called} in REPLICATOR_SECRETS_DIR set"


def test_unusable_file_in_the_folder_of_secrets_is_reported(folder, tmp_path):
    folder.change("    dsn: postgresql://u:p@h:5432/d", "    dsn: ${TARGET_DSN:-unsafe}")
    (tmp_path / "TARGET_DSN").write_bytes(b"\xff")
    folder.environ["REPLICATOR_SECRETS_DIR"] = str(tmp_path)
    assert (folder.only().code, "TARGET_DSN in REPLICATOR_SECRETS_DIR" in folder.only().message) == ("secret", True)


def test_folder_of_secrets_is_for_secrets_only(folder, tmp_path):
    folder.change("    group_id: readers", "    group_id: ${GROUP:-readers}")
    (tmp_path / "GROUP").write_text("from-the-file")
    folder.environ["REPLICATOR_SECRETS_DIR"] = str(tmp_path)
    assert folder.load().settings.sources["shop"].group_id == "readers"


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe", b"x" * 70_000])
def test_unusable_secret_files_are_reported(folder, tmp_path, content):
    line = folder.change("  token: open-sesame", "  token: ${TOKEN:-unsafe}")
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    folder.environ["TOKEN_FILE"] = str(tmp_path / "token")
    assert (folder.only().code, folder.only().line) == ("secret", line)


def test_line_end_of_a_token_is_not_part_of_it(folder):
    folder.environ["TOKEN"] = "s3cr3t\n"
    lineage = "lineage={url: 'http://h/x', token: '${TOKEN}'}"
    settings = folder.load(overrides=["http.token=${TOKEN}", "serve.token=${TOKEN}", lineage]).settings
    tokens = (settings.http.token, settings.serve.token, settings.lineage.token)
    assert [token.get_secret_value() for token in tokens] == ["s3cr3t"] * 3


def test_variable_files_are_read_for_secrets_only(folder, tmp_path):
    folder.change("    group_id: readers", "    group_id: ${GROUP:-readers}")
    (tmp_path / "group").write_text("from-the-file")
    folder.environ["GROUP_FILE"] = str(tmp_path / "group")
    assert folder.load().settings.sources["shop"].group_id == "readers"


def test_no_output_shows_secrets(folder):
    folder.write(folder.file.read_text().replace("postgresql://u:p@h:5432/d", DSN).replace("open-sesame", SECRET))
    folder.write(folder.file.read_text().replace("SASL_SSL", f"SASL_SSL\n      sasl.password: {SECRET}"))
    loaded = folder.load()
    for shown in (
        loaded,
        loaded.settings,
        loaded.settings.model_dump(),
        loaded.to_redacted(),
        json.dumps(loaded.to_redacted()),
    ):
        assert SECRET not in repr(shown)
        assert SECRET not in str(shown)
    assert to_plain_options(loaded.settings.sinks["target"])["dsn"] == DSN
    assert to_plain_options(loaded.settings.sources["shop"])["security"]["sasl.password"] == SECRET


def test_secrets_of_an_adapter_without_a_model_are_hidden(folder):
    folder.plugins = Plugins(sinks=frozenset({"warehouse"}))
    secrets = [f"{SECRET}{i}" for i in range(4)]
    options = [
        f"dsn: db://u:{secrets[0]}@h/d",
        f"token: {secrets[1]}",
        f"auth: {{token: {secrets[2]}, user: ada}}",
        "password: {old: 47114711}",
    ]
    sink = "\n    ".join(["sinks:\n  plain:", "kind: warehouse", *options])
    spark = f"engine: local\nspark: {{spark.hadoop.fs.s3a.secret.key: {secrets[3]}}}"
    folder.write(folder.file.read_text().replace("sinks:", sink, 1).replace("engine: local", spark, 1))
    loaded = folder.load()
    assert not any(secret in json.dumps(loaded.to_redacted()) for secret in (SECRET, "47114711"))
    assert loaded.to_redacted()["sinks"]["plain"]["auth"] == {"token": "**********", "user": "ada"}
    assert {f"db://u:{secrets[0]}@h/d", *secrets[1:], "47114711"} <= loaded.list_secrets()


PLANTED = [
    ("dsn: postgresql://u:p@h:5432/d", f"dsn: [{SECRET}]"),
    ("dsn: postgresql://u:p@h:5432/d", f"dsn: {{{SECRET}: 1}}"),
    ("dsn: postgresql://u:p@h:5432/d", f"dsn: mysql://u:{SECRET}@h/d"),
    ("dsn: postgresql://u:p@h:5432/d", f"dsn: postgresql://u:{SECRET}@h:port/d"),
    ("dsn: postgresql://u:p@h:5432/d", f"dns: {DSN}"),
    ("dsn: postgresql://u:p@h:5432/d", f"dsn: '{DSN}"),
    ("dsn: postgresql://u:p@h:5432/d", f"dsn: *{SECRET}"),
    ("dsn: postgresql://u:p@h:5432/d", f"dsn: !{SECRET} x"),
    ("dsn: postgresql://u:p@h:5432/d", f"dsn: {DSN}\n    dsn: {DSN}"),
    ("dsn: postgresql://u:p@h:5432/d", f"dsn: {DSN}: {SECRET}"),
    ("token: open-sesame", f"token: [{SECRET}]"),
    ("token: open-sesame", f"token: {{a: {SECRET}}}"),
    ("depth: 64", f"depth: {SECRET}"),
    ("memory: 1GiB", f"memory: 5 {SECRET}"),
    ("security.protocol: SASL_SSL", f"sasl.password: [{SECRET}]"),
    ("security.protocol: SASL_SSL", f"password: {SECRET}"),
    ("client.rack: a", f"sasl.password: {SECRET}"),
    ("bootstrap_servers: localhost:29092", f"bootstrap_servers: u:{SECRET}@h:1"),
    ("path: ./lake\n", f"path: s3://key:{SECRET}@bucket/x\n"),
    ("path: ./lake\n", f"path: ftp://key:{SECRET}@host/x\n"),
    ("kind: postgres", f"kind: {SECRET}"),
    ("policy: scd1", f"policy: {SECRET}"),
    ("start_from: earliest", f"start_from: {SECRET}"),
    ("address: 127.0.0.1:8090", f"address: {SECRET}"),
    ("engine: local", f"engine: {SECRET}"),
]


@pytest.mark.parametrize(("old", "new"), PLANTED)
def test_no_error_shows_a_planted_secret(folder, old, new):
    folder.change(old, new)
    with pytest.raises(ConfigError) as caught:
        folder.load()
    error = caught.value
    shown = [str(error), repr(error), *(json.dumps(finding.as_dict()) for finding in error.findings)]
    chain = [error, error.__cause__, error.__context__]
    assert not any(SECRET in text for text in [*shown, *map(repr, chain), *map(str, chain)])


def test_models_hide_their_input():
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"pipeline": [SECRET], "http": {"token": [SECRET]}})
    assert SECRET not in str(caught.value)


def test_every_secret_field_is_marked_in_the_schema():
    found = set()
    for definition in build_config_schema()["$defs"].values():
        for key, value in definition.get("properties", {}).items():
            if value.get("format") == "password" or any(v.get("format") == "password" for v in value.get("anyOf", ())):
                found.add(key)
    assert found == {"dsn", "token", "access_key_id", "secret_access_key", "session_token", "key"}
    assert all(is_secret(("sinks", "x", key)) for key in found - {"key"})
    assert is_secret(("tables", 0, "columns", "email", "key"))
    assert is_secret(("tables", 0, "to", 1, "columns", "email", "key"))
    assert not is_secret(("tables", 0, "columns", "key"))
    assert is_secret(("sources", "shop", "security", "sasl.password"))
    assert not is_secret(("sources", "shop", "group_id"))


@pytest.mark.parametrize("value", ["''", "${KEY:-}", "' '"])
def test_empty_secret_of_spark_is_refused_at_its_line(folder, value):
    options = [f"  spark.hadoop.fs.s3a.secret.key: {value}", "  spark.app.name: ''", f"  spark.some.token: {value}"]
    line = folder.change("engine: local", "\n".join(["engine: local", "spark:", *options]))
    assert [(f.code, f.line, f.message.split(";")[0]) for f in folder.findings()] == [
        ("secret", line + 1, "spark.spark.hadoop.fs.s3a.secret.key is an empty secret"),
        ("secret", line + 3, "spark.spark.some.token is an empty secret"),
    ]


def every_secret() -> list[tuple[str, Any]]:
    found, models = [], [Strict]
    while models:
        model = models.pop()
        models += model.__subclasses__()
        found += [
            (f"{model.__name__}.{name}", field.rebuild_annotation())
            for name, field in model.model_fields.items()
            if "SecretStr" in repr(field.rebuild_annotation())
        ]
    return sorted(dict(found).items())


@pytest.mark.parametrize(("name", "kind"), every_secret())
def test_empty_secret_is_refused(name: str, kind: Any) -> None:
    empty = {"sasl.password": ""} if "dict" in repr(kind) else ""
    with pytest.raises(ValidationError):
        TypeAdapter(kind, config={"hide_input_in_errors": True}).validate_python(empty)
