"""Defaults of keys on which stored data depends."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import PROJECT

from replicator.settings import Loaded, load_settings
from replicator.wiring.configuration import describe_defaults

LAKE = "  lake: {kind: delta, path: ./lake}\n"
STORE = "  store: {kind: delta, path: 's3://bucket/lake', storage: {region: eu}}\n"
MIRROR = "  mirror: {kind: postgres, dsn: 'postgresql://me:secret@db/target'}\n"
LOG = "  log: {kind: event_log, path: ./log}\n"
CONFIG = """\
sources:
  feed: {format: debezium_json, transport: kafka, bootstrap_servers: "b:1", topics: ["cdc.*"]}
sinks:
%stables:
  - {match: public.t, source: feed, to: [{sink: %s}]}
"""


def load_config(folder: Path, sinks: str, more: str = "") -> Loaded:
    (folder / "config").mkdir(parents=True)
    path = folder / "config" / "replicator.yaml"
    path.write_text(CONFIG % (sinks, sinks.split(":", maxsplit=1)[0].strip()) + more)
    return load_settings(path)


@pytest.mark.parametrize(
    ("sinks", "place"),
    [
        (LAKE + MIRROR, "lake/_replicator/dead_letters"),
        (MIRROR + LAKE, "lake/_replicator/dead_letters"),
        (STORE + MIRROR, "dsn"),
        (LOG, "state/web-shop/dead_letters"),
    ],
)
def test_defaults_of_pipeline_group_and_dead_letters(tmp_path: Path, sinks: str, place: str) -> None:
    found = load_config(tmp_path / "web shop", sinks)
    assert found.settings.pipeline == "web-shop"
    assert found.settings.sources["feed"].group_id == "replicator-web-shop"
    letters = found.settings.dead_letters
    if place == "dsn":
        assert letters.dsn.get_secret_value() == "postgresql://me:secret@db/target" and letters.path is None
    else:
        assert letters.path == str(tmp_path / "web shop" / place)
    said = " ".join(describe_defaults(found))
    assert "of its folder, web-shop" in said and "rejected records are stored in" in said and "secret" not in said


def test_values_of_the_config_replace_defaults(tmp_path: Path) -> None:
    found = load_config(tmp_path, LAKE, "pipeline: shop\ndead_letters: {path: ./rejects}\n")
    assert (found.settings.pipeline, found.settings.sources["feed"].group_id) == ("shop", "replicator-shop")
    assert found.settings.dead_letters.path == str(tmp_path / "rejects")
    assert describe_defaults(found) == []


def test_shipped_config_keeps_its_group(tmp_path: Path) -> None:
    """Its daemons have used this group since before there was a default per pipeline."""
    shipped = load_settings(PROJECT / "config" / "replicator.yaml").settings
    assert [source.group_id for source in shipped.sources.values() if hasattr(source, "group_id")] == ["cdc-python-consumer"]
