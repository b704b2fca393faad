"""Defaults in the JSON schema are those that the adapters apply."""

from __future__ import annotations

import pytest

from adapters.delta.table_writer import EVERY_COMMITS
from adapters.sources.files.file_list import SETTLED_SECONDS
from replicator.ports.options import to_timedelta
from replicator.settings.json_schema import build_config_schema
from replicator.settings.lanes import DEFAULT_RETENTION, resolve_lane
from replicator.settings.tables import EntrySettings, PolicyKeys, TableSettings

PARTS = build_config_schema()["$defs"]


def read_default(part, key):
    return PARTS[part]["properties"][key]["default"]


@pytest.mark.parametrize(
    ("part", "key", "applied"),
    [
        ("DeltaSettings", "compact_every", EVERY_COMMITS),
        ("EventLogSettings", "compact_every", EVERY_COMMITS),
        ("EventStoreSettings", "compact_every", EVERY_COMMITS),
        ("PolicyKeys", "tombstone_retention", DEFAULT_RETENTION),
    ],
)
def test_default_equals_that_of_the_adapter(part, key, applied):
    assert read_default(part, key) == applied


@pytest.mark.parametrize(
    ("part", "key", "seconds"),
    [
        ("ArchiveSettings", "settle", SETTLED_SECONDS),
        ("FilesSettings", "settle", SETTLED_SECONDS),
    ],
)
def test_default_duration_equals_that_of_the_adapter(part, key, seconds):
    assert to_timedelta(read_default(part, key)).total_seconds() == seconds


def test_defaults_of_policy_keys_are_those_of_a_lane_without_any():
    entry = EntrySettings(sink="lake")
    table = TableSettings(match="public.orders", source="shop", to=[entry])
    lane = resolve_lane("public.orders", (entry, table, PolicyKeys()), "delta", ())
    shown = {key: read_default("PolicyKeys", key) for key in ("policy", "deletes", "schema_changes", "dropped_columns")}
    rules = lane.schema_rules
    applied = (lane.policy, lane.deletes, rules.others.value, "remove" if rules.removes else "keep")
    assert tuple(shown.values()) == applied
