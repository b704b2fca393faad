"""A store of dead letters that an installed package brings."""

from __future__ import annotations

import pytest

from replicator.domain.errors import ConfigProblem
from replicator.testing.fakes import FakeDeadLetters
from replicator.wiring import adapters
from replicator.wiring.configuration import read_config

CONFIG = """
sources:
  feed: {format: canal_json, transport: archive, path: ./in}
sinks:
  lake: {kind: delta, path: ./lake}
dead_letters: {kind: KIND, url: "https://rejects.example/shop"}
tables:
  - {match: shop.t, source: feed, to: [{sink: lake}]}
"""
STORE = """
from replicator.testing.fakes import FakeDeadLetters

class Store(FakeDeadLetters):
    def __init__(self, options):
        super().__init__()
        self.options = options
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Reads the config with the package installed."""
    package = tmp_path / "package"
    (package / "my_store-1.0.dist-info").mkdir(parents=True)
    (package / "my_store-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: my_store\nVersion: 1.0\n")
    (package / "my_store-1.0.dist-info" / "entry_points.txt").write_text(
        "[replicator.dead_letters]\nmine = my_store:Store\n"
    )
    (package / "my_store.py").write_text(STORE)
    monkeypatch.syspath_prepend(package)
    config = tmp_path / "shop" / "config" / "replicator.yaml"
    config.parent.mkdir(parents=True)

    def read_with(kind):
        config.write_text(CONFIG.replace("KIND", kind))
        return read_config(config, None, ())

    return read_with


def test_store_of_a_package_gets_its_own_keys(load):
    store = adapters.build_dead_letters(load("mine"))
    assert isinstance(store, FakeDeadLetters)
    assert store.options == {"url": "https://rejects.example/shop", "pipeline": "shop"}


@pytest.mark.parametrize("kind", ["theirs", "delta"])
def test_unknown_kind_is_refused_with_the_list_of_kinds(load, kind):
    with pytest.raises(ConfigProblem, match=r"dead_letters\.kind has an unknown value") as refused:
        load(kind)
    assert "mine" in str(refused.value)


def test_kind_is_refused_without_a_package(tmp_path):
    config = tmp_path / "replicator.yaml"
    config.write_text(CONFIG.replace("KIND", "mine"))
    with pytest.raises(ConfigProblem, match=r"dead_letters\.kind has an unknown value.*no installed package has one"):
        read_config(config, None, ())
