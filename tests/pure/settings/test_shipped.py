"""The shipped configs: they load, and they are valid under the shipped schema."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from paths import PROJECT
from ruamel.yaml import YAML

from replicator.settings import load_settings
from replicator.settings.json_schema import FILES, build_config_schema, render_file

CONFIG = PROJECT / "config"
EXAMPLES = sorted((CONFIG / "examples").glob("*.yaml"))
OVERLAYS = sorted((CONFIG / "environments").glob("*.yaml"))
WHOLE = [CONFIG / "replicator.yaml", *EXAMPLES]
PRODUCTION = {
    "KAFKA_BOOTSTRAP_SERVERS": "broker:9092",
    "DATALAKE_DSN": "postgresql://u:p@lake/d",
    "MASK_KEY": "0123456789abcdef0123456789abcdef",
    "TARGET_DSN": "postgresql://u:p@target/d",
    "SOURCE_DSN": "postgresql://u:p@source/d",
    "SHOP_DSN": "postgresql://u:p@target/d",
    "SALES_DSN": "mariadb://u:p@shop/d",
    "KAFKA_PASSWORD": "p",
    "REGISTRY_PASSWORD": "p",
    "REPLICATOR_TOKEN": "t",
}
TABLES = ("customers", "products", "orders", "order_items")


def yaml(file: Path) -> Any:
    return YAML(typ="safe", pure=True).load(file)


@cache
def validator_of(schema: Path) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(yaml(schema))


def test_shipped_config_loads_without_variables():
    loaded = load_settings(CONFIG / "replicator.yaml", environ={})
    settings = loaded.settings
    assert loaded.warnings == ()
    for table in TABLES:
        lanes = settings.resolve_lanes(f"public.{table}")
        assert [(lane.sink, lane.kind, lane.into, lane.policy, lane.deletes) for lane in lanes] == [
            ("lake", "delta", table, "scd1", "hard"),
            ("datalake", "postgres", table, "scd1", "hard"),
            ("target", "postgres", table, "scd1", "hard"),
        ]
        assert settings.list_table_event_logs(f"public.{table}") == ("raw", "raw_pg")
    assert settings.sinks["lake"].path == str(CONFIG.parent / "deltalake")
    assert settings.sinks["datalake"].dsn.get_secret_value().endswith("@127.0.0.1:5434/datalake_db")
    assert settings.sinks["target"].dsn.get_secret_value().endswith("@127.0.0.1:5435/target_db")


def test_dev_overlay_uses_local_folders():
    loaded = load_settings(CONFIG / "replicator.yaml", "dev", environ={})
    assert loaded.warnings == ()
    assert {name: sink.kind for name, sink in loaded.settings.sinks.items()} == {"lake": "delta", "raw": "event_log"}
    assert all(Path(sink.path).is_relative_to(CONFIG.parent / "deltalake") for sink in loaded.settings.sinks.values())


def test_prod_overlay_needs_every_dsn_from_outside(tmp_path):
    with pytest.raises(Exception, match="TARGET_DSN_FILE") as caught:
        load_settings(CONFIG / "replicator.yaml", "prod", environ={})
    assert {finding.code for finding in caught.value.findings} == {"unset"}
    (tmp_path / "dsn").write_text("postgresql://u:p@from-a-file/d\n")
    environ = {**PRODUCTION, "TARGET_DSN_FILE": str(tmp_path / "dsn"), "REPLICATOR_HOME": "/srv/replicator"}
    del environ["TARGET_DSN"]
    settings = load_settings(CONFIG / "replicator.yaml", "prod", environ=environ).settings
    assert settings.sinks["lake"].path == "/srv/replicator/deltalake"
    assert settings.sinks["target"].dsn.get_secret_value() == "postgresql://u:p@from-a-file/d"
    assert "127.0.0.1:54" not in str(
        {n: getattr(s, "dsn", None) and s.dsn.get_secret_value() for n, s in settings.sinks.items()}
    )


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples_load(file):
    assert load_settings(file, environ=PRODUCTION).warnings == ()


def test_smallest_config_of_the_readme_loads(tmp_path):
    text = re.search(r"The smallest config.*?```yaml\n(.*?)```", (CONFIG.parent / "README.md").read_text(), re.DOTALL)[1]
    assert len(text.splitlines()) <= 9
    file = tmp_path / "shop" / "config" / "replicator.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    settings = load_settings(file, environ={}).settings
    assert settings.pipeline == "shop"
    assert settings.sources["shop"].group_id == "replicator-shop"
    assert settings.dead_letters.path == str(tmp_path / "shop" / "lake" / "_replicator" / "dead_letters")


@pytest.mark.parametrize(("name", "overlay"), FILES.items())
def test_schema_files_are_current(name, overlay):
    current = (CONFIG / name).read_text(encoding="utf-8") == render_file(overlay=overlay)
    assert current, "run: python -m replicator.settings.json_schema config"
    jsonschema.Draft202012Validator.check_schema(build_config_schema(overlay=overlay))


@pytest.mark.slow
@pytest.mark.parametrize("file", [*WHOLE, *OVERLAYS], ids=lambda file: file.stem)
def test_shipped_files_are_valid_under_their_schema(file):
    header = file.read_text(encoding="utf-8").splitlines()[0]
    prefix = "# yaml-language-server: $schema="
    assert header.startswith(prefix)
    validator_of((file.parent / header.removeprefix(prefix)).resolve()).validate(yaml(file))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("topicz",), 1),
        (("engine",), "flink"),
        (("sinks", "lake", "pth"), "x"),
        (("sinks", "my lake"), {"kind": "delta", "path": "x"}),
        (("sinks", "lake", "kind"), "detla"),
        (("sources", "shop", "format"), "debezium_arvo"),
        (("sources", "shop", "topics"), "cdc"),
        (("tables", 0, "to", 0, "policy"), "scd3"),
        (("tables", 0, "sequence_by"), []),
        (("limits",), {"depth": 0}),
        (("limits",), {"depth": "many"}),
        (("defaults",), {"deletes": "softly"}),
    ],
)
def test_schema_refuses_what_the_loader_refuses(path, value):
    config = yaml(CONFIG / "replicator.yaml")
    inner = config
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config, build_config_schema())


def test_schema_accepts_references_to_the_environment():
    config = yaml(CONFIG / "replicator.yaml")
    config["limits"] = {"depth": "${DEPTH}", "memory": "1GiB"}
    config["engine"] = "${ENGINE:-local}"
    jsonschema.validate(config, build_config_schema())
