"""What the contract names but nothing does yet is refused as such, with its line, and never as a typo."""

from __future__ import annotations

import pytest

from replicator.settings.schema import Settings
from replicator.settings.sinks import DeadLetterSettings
from replicator.settings.supported import LATER_KEYS, LATER_VALUES, later_keys
from replicator.settings.tables import EntrySettings, PolicyKeys, TableSettings

VALUES = [
    ("transport: kafka", "transport: query"),
    ("        schema_changes: evolve", "        schema_changes: quarantine"),
    ("        schema_changes: evolve", "        schema_changes: {add_column: evolve}"),
    ("state: ./state", "max_rejects: 5"),
    ("state: ./state", "on_reject: stop"),
    ("    keys: [id]", "    where: id > 5"),
    ("  path: ./lake/_replicator/dead_letters", "  topic: rejects"),
]


@pytest.mark.parametrize(("old", "new"), VALUES)
def test_refused_as_not_yet_supported(folder, old, new):
    line = folder.change(old, new)
    found = [f for f in folder.findings() if f.code == "not_yet_supported"]
    assert [f.line for f in found] == [line]
    assert found[0].message.endswith("is not yet supported")
    assert not [f for f in folder.findings() if f.code in ("unknown_key", "unknown_value")] or new.startswith("transport")


@pytest.mark.parametrize("name", sorted(LATER_VALUES["format"]))
def test_formats(folder, name):
    folder.file.write_text(folder.file.read_text().replace("debezium_json", name))
    assert {f.code for f in folder.findings()} == {"not_yet_supported"}


@pytest.mark.parametrize("key", sorted(LATER_KEYS["PolicyKeys"]))
@pytest.mark.parametrize("where", ["tables[1]", "tables[1].to[0]", "defaults"])
def test_keys_of_tables_entries_and_defaults(folder, key, where):
    finding = folder.findings(overrides=[f"{where}.{key}=[a]"])
    assert {(f.code, f.file) for f in finding if f.code != "inapplicable"} == {("not_yet_supported", f"--set {where}.{key}")}


def test_every_later_key_is_a_key_of_its_model():
    models = {"Settings": Settings, "PolicyKeys": PolicyKeys, "DeadLetterSettings": DeadLetterSettings}
    for name, keys in LATER_KEYS.items():
        assert keys <= models[name].model_fields.keys()
    assert later_keys(EntrySettings) == later_keys(TableSettings) == LATER_KEYS["PolicyKeys"]
