"""Lakes in an object store: URLs, and what is passed to the adapters."""

from __future__ import annotations

import json

import pytest

from replicator.settings.schema import to_plain_options
from replicator.wiring import adapters

KEYS = "access_key_id: '${KEY}', secret_access_key: '${SECRET}'"


def lake(storage="", path="s3://bucket/lake"):
    said = f", storage: {{{storage}}}" if storage else ""
    return [f"sinks.lake={{kind: delta, path: {path}{said}}}"]


def test_storage_options_are_passed_to_adapters(folder, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cr3t\n")
    folder.environ |= {"KEY": "AKID", "SECRET_FILE": str(secret)}
    loaded = folder.load(overrides=lake(f"{KEYS}, endpoint: http://h:9000/, allow_http: true, region: x"))
    storage = {"access_key_id": "AKID", "secret_access_key": "s3cr3t", "endpoint": "http://h:9000"}
    settings = loaded.settings.sinks["lake"]
    assert to_plain_options(settings)["storage"] == {**storage, "allow_http": True, "region": "x"}
    assert to_plain_options(settings)["path"] == "s3://bucket/lake"
    for text in (repr(loaded.settings), str(settings), settings.model_dump_json()):
        assert "s3cr3t" not in text and "AKID" not in text


@pytest.mark.parametrize("path", ["s3://bucket", "s3a://bucket/a/b=c/d", "s3://bucket/lake/"])
def test_valid_urls(folder, path):
    assert to_plain_options(folder.load(overrides=lake(path=path)).settings.sinks["lake"])["path"] == path.rstrip("/")


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("gs://bucket/lake", "not_yet_supported", "(gs), which is not yet supported; give a local folder, or s3://"),
        ("abfss://x@y/z", "not_yet_supported", "(abfss)"),
        ("az://x/z", "not_yet_supported", "(az)"),
        ("ftp://x/z", "path", "unknown kind"),
        ("s3://key:secret@bucket/z", "path", "holds credentials; write them under 'storage'"),
        ("s3://bucket/a b", "path", "must be s3://BUCKET/FOLDER"),
        ("s3://bucket/a//b", "path", "must be s3://BUCKET/FOLDER"),
        ("s3://", "path", "must be s3://BUCKET/FOLDER"),
        ("s3://bucket/a/../b", "path_escapes", "leaves its folder"),
    ],
)
def test_other_urls_are_refused(folder, path, code, said):
    found = folder.only(overrides=lake(path=f"'{path}'"))
    assert found.code == code and said in found.message
    assert "secret" not in str(found)


@pytest.mark.parametrize("place", ["dead_letters.path", "state"])
def test_other_locations_must_be_local(folder, place):
    assert "not_yet_supported" in {found.code for found in folder.findings(overrides=[f"{place}=s3://b/x"])}


@pytest.mark.parametrize(("transport", "form"), [("archive", "debezium_json"), ("files", "dms_csv")])
def test_sources_in_a_bucket(folder, transport, form):
    def source(more):
        return [f"sources.old={{format: {form}, transport: {transport}, {more}}}"]

    folder.environ |= {"KEY": "AKID", "SECRET": "s3cr3t"}
    loaded = folder.load(overrides=source(f"path: s3://bbb/x/, look_every: 2 minutes, storage: {{{KEYS}, region: y}}"))
    storage = {"access_key_id": "AKID", "secret_access_key": "s3cr3t", "region": "y", "allow_http": False}
    told = adapters.make_check_options(loaded, "old")
    assert told.items() >= {"path": "s3://bbb/x", "storage": storage, "look_every": "2 minutes", "format": form}.items()
    assert "s3cr3t" not in repr(loaded.settings)
    assert folder.only(overrides=source("path: ./x, storage: {region: x}")).code == "inapplicable"
    assert folder.only(overrides=source("path: s3://bbb, storage: {acess_key_id: a}")).code == "unknown_key"
    assert folder.only(overrides=source("path: gs://b/x")).code == "not_yet_supported"
    assert folder.only(overrides=source("path: ./x, look_every: often")).code == "duration"


@pytest.mark.parametrize(
    ("storage", "code", "said"),
    [
        ("access_key_id: a", "storage", "needs both"),
        ("session_token: a", "storage", "without 'access_key_id'"),
        ("endpoint: 'http://h:9000'", "storage", "allow_http: true"),
        ("endpoint: 'h:9000'", "url", "must be a URL"),
        ("acess_key_id: a", "unknown_key", "acess_key_id"),
        ("allow_http: 7", "type", "true or false"),
    ],
)
def test_invalid_storage_is_refused(folder, storage, code, said):
    found = folder.only(overrides=lake(storage))
    assert found.code == code and said in found.message


def test_local_lake_refuses_storage(folder):
    assert folder.only(overrides=lake("region: x", "./lake")).code == "inapplicable"


def test_two_sinks_at_one_location_are_refused(folder):
    overrides = [*lake(), "sinks.other={kind: delta, path: s3a://bucket/lake}"]
    assert "same_place" in {found.code for found in folder.findings(overrides=overrides)}


def test_schema_marks_secrets_of_storage():
    from replicator.settings.json_schema import build_config_schema

    keys = build_config_schema()["$defs"]["StorageSettings"]["properties"]
    assert {name for name, value in keys.items() if value.get("format") == "password"} == {
        "access_key_id",
        "secret_access_key",
        "session_token",
    }
    assert "s3cr3t" not in json.dumps(keys)
