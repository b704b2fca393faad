"""Old names of the ports and the published contracts."""

import importlib
import pickle

import pytest

from replicator._compat import ALIASES, find_new_name
from replicator.ports import sink


@pytest.mark.parametrize("module", ALIASES)
def test_old_name_gives_the_new_object_and_warns(module):
    for old in ALIASES[module][1]:
        target, new = find_new_name(module, old)
        with pytest.warns(DeprecationWarning, match=f"{module}.{old} is now {target}.{new}"):
            found = getattr(importlib.import_module(module), old)
        assert found is getattr(importlib.import_module(target), new)


@pytest.mark.parametrize(
    ("module", "name", "home"),
    [
        ("ports.laying", "BulkLoads", "ports.sink"),
        ("testing.dead_letter_contract", "DeadLetterContract", "testing.stores_contract"),
        ("testing.event_store_contract", "EventStoreContract", "testing.stores_contract"),
        ("testing.fake_event_store", "FakeEventStore", "testing.stores_contract"),
        ("testing.value_types", "VALUE_TYPES", "testing.source"),
    ],
)
def test_unchanged_name_of_a_moved_module_is_found(module, name, home):
    old = importlib.import_module(f"replicator.{module}")
    with pytest.warns(DeprecationWarning, match=f"{module}.{name} is now replicator.{home}.{name}"):
        found = getattr(old, name)
    assert found is getattr(importlib.import_module(f"replicator.{home}"), name)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = sink.Nothing


@pytest.mark.filterwarnings("error")
def test_new_name_does_not_warn():
    assert pickle.loads(pickle.dumps(sink.LaneArtifact)) is sink.LaneArtifact
