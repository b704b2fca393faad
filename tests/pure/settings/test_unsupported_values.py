"""What the contract names but nothing does yet is refused as such, with its line, and never as a typo."""

from __future__ import annotations

import pytest

from replicator.settings import supported_values
from replicator.settings.schema import Settings
from replicator.settings.supported_values import LATER_KEYS, list_later_keys
from replicator.settings.tables import EntrySettings, PolicyKeys, TableSettings

VALUES = [
    ("  path: ./lake/_replicator/dead_letters", "  topic: rejects"),
]


@pytest.mark.parametrize(("old", "new"), VALUES)
def test_refused_as_not_yet_supported(folder, monkeypatch, old, new):
    """Now that everything is there: as if it were not."""
    monkeypatch.setattr(supported_values, "LATER_KEYS", {"DeadLetterSettings": frozenset({"topic"})})
    line = folder.change(old, new)
    found = [f for f in folder.findings() if f.code == "not_yet_supported"]
    assert [f.line for f in found] == [line]
    assert found[0].message.endswith("is not yet supported")
    assert not [f for f in folder.findings() if f.code in ("unknown_key", "unknown_value")]


def test_every_later_key_is_a_key_of_its_model():
    models = {"Settings": Settings, "PolicyKeys": PolicyKeys}
    for name, keys in LATER_KEYS.items():
        assert keys <= models[name].model_fields.keys()
    assert list_later_keys(EntrySettings) == list_later_keys(TableSettings) == frozenset()
