"""Options of Delta tables: levels, engines and refusals."""

from __future__ import annotations

import pytest

from replicator.wiring import adapters

LAKE = "        schema_changes: evolve\n"
"""The last line of the entry tables[1].to[1], which goes to the lake."""

WRONG = [
    ("partition_by: [id, id]", "contradiction", "tables[1].to[1].partition_by names a column twice"),
    ("partition_by: []", "type", "must not be empty"),
    ("partition_by: country", "type", "must be a list"),
    ("partition_by: [_cdc_op]", "value", "names a column of replicator's own"),
    ("change_data_feed: maybe", "type", "must be true or false"),
    ("compact_every: -1", "value", "must be at least 0"),
    ("compact_every: often", "type", "must be a whole number"),
    ("compact_every: true", "type", "must be a number"),
    ("vacuum_every: often", "duration", "must be a time such as 30 seconds"),
    ("vacuum_retain: 0 days", "duration", "must be longer than none"),
    ("cluster_by: [a, b, c, d, e]", "value", "names 5 columns; Delta clusters by up to 4"),
    (
        "cluster_by: [id]\n        partition_by: [id]",
        "contradiction",
        "cluster_by and 'partition_by' exclude each other",
    ),
    ("partitioned_by: [id]", "unknown_key", "unknown key 'partitioned_by'"),
]


@pytest.mark.parametrize(("said", "code", "sentence"), WRONG)
def test_invalid_options_have_their_line(folder, said, code, sentence):
    line = folder.change(LAKE, f"{LAKE}        {said}\n")
    finding = folder.only()
    assert (finding.code, finding.line) == (code, line)
    assert sentence in finding.message


def test_clustering_needs_spark(folder):
    overrides = ["tables[1].to[1].cluster_by=[id]"]
    loaded = folder.load(overrides=["engine=spark", *overrides])
    assert loaded.settings.resolve_lanes("public.orders")[1].options == {"cluster_by": ("id",)} and not loaded.warnings
    (finding,) = folder.load(overrides=overrides).warnings
    assert finding.code == "engine" and "delta-rs reads a clustered table and commits nothing to it" in finding.message


@pytest.mark.parametrize(
    "said",
    [
        "partition_by: [id]",
        "cluster_by: [id]",
        "change_data_feed: true",
        "deletion_vectors: true",
        "compact_every: 5",
        "vacuum_every: 1 day",
    ],
)
def test_other_targets_refuse_options_of_delta(folder, said):
    """In an entry of another sink, in a table without a Delta sink, in an entry of an event log, and at the top
    level."""
    key = said.split(":")[0]
    for old, indent in (("        into: orders_now\n", 8), ("    policy: append\n", 4), ("      - sink: raw\n", 8)):
        line = folder.change(old, f"{old}{' ' * indent}{said}\n")
        finding = folder.only()
        assert (finding.code, finding.line) == ("inapplicable", line), str(finding)
        assert f"key '{key}'" in finding.message
    line = folder.change("state: ./state", f"state: ./state\n{said}")
    finding = folder.only()
    assert (finding.code, finding.line) == ("unknown_key", line)


def test_options_of_table_and_defaults_apply_to_delta_entries(folder):
    overrides = ["tables[1].partition_by=[day]", "defaults.compact_every=7", "defaults.partition_by=[id]"]
    loaded = folder.load(overrides=[*overrides, "tables[1].to[1].change_data_feed=true"])
    mirror, lake = loaded.settings.resolve_lanes("public.orders")
    assert mirror.options == {}
    assert lake.options == {"partition_by": ("day",), "change_data_feed": True, "compact_every": 7}
    (other,) = loaded.settings.resolve_lanes("public.customers")
    assert other.options == {"partition_by": ("id",), "compact_every": 7}
    assert adapters.build_lane(loaded, lake).options == lake.options
    assert adapters.build_lane(loaded, mirror).options == {}


def test_option_of_the_defaults_that_each_table_sets_is_accepted(folder):
    folder.change("defaults:\n", "defaults:\n  compact_every: 5\n")
    settings = folder.load(overrides=["tables[0].compact_every=7", "tables[1].compact_every=7"]).settings
    (lane,) = settings.resolve_lanes("public.customers")
    assert lane.options["compact_every"] == 7


def test_undeclared_columns_are_refused(folder):
    folder.change("      - sink: target\n\n", "      - {sink: lake, partition_by: [att]}\n\n")
    finding = folder.only()
    assert (finding.code, finding.suggestion) == ("unknown_column", "did you mean 'at'?")
    assert "names 'att', which is no column of the declared 'schema'" in finding.message
    folder.write(folder.file.read_text().replace("[att]", "[at]"))
    assert folder.load().settings.resolve_lanes("audit.log")[0].options == {"partition_by": ("at",)}


@pytest.mark.parametrize("option", ["partition_by", "cluster_by"])
@pytest.mark.parametrize(
    ("said", "why", "suggestion"),
    [
        ("columns: {town: drop}", "columns.town drops", "name another column, or keep this one"),
        ("columns: {town: {rename: city}}", "columns.town renames", "write 'city'"),
        ("except_column_list: [town]", "except_column_list leaves out", "name another column, or keep this one"),
        ("column_list: [id]", "column_list leaves out", "name another column, or keep this one"),
        ("column_list: [id]\n        columns: {town: {mask: nothing}}", "column_list leaves out", "name another"),
        ("column_list: [id]\n        columns: {city: {rename: town}}", "column_list leaves out", "name another"),
    ],
)
def test_columns_missing_from_the_target_are_refused(folder, option, said, why, suggestion):
    line = folder.change(LAKE, f"{LAKE}        {option}: [id, town]\n        {said}\n")
    finding = folder.only(overrides=["engine=spark"])
    assert (finding.code, finding.line) == ("contradiction", line)
    assert f"tables[1].to[1].{option} names 'town', which tables[1].to[1].{why}" in finding.message
    assert (finding.suggestion or "").startswith(suggestion)


@pytest.mark.parametrize(
    "said",
    [
        "columns: {city: {rename: town}}",
        "columns: {town: drop, city: {rename: town}}",
        "columns: {town: {constant: here}}\n        column_list: [id]",
        "columns: {town: {mask: truncate, key: 0123456789abcdef, length: 2}}\n        except_column_list: [city]",
    ],
)
def test_columns_of_the_target_are_accepted(folder, said):
    folder.change(LAKE, f"{LAKE}        partition_by: [town]\n        {said}\n")
    assert folder.load().settings.resolve_lanes("public.orders")[1].options == {"partition_by": ("town",)}


@pytest.mark.parametrize("mask", ["{mask: nothing}", "{mask: fixed, text: x}"])
def test_partitions_by_a_constant_column_are_a_warning(folder, mask):
    line = folder.change(LAKE, f"{LAKE}        partition_by: [town]\n        columns: {{town: {mask}}}\n")
    (finding,) = folder.load().warnings
    assert (finding.code, finding.line) == ("one_value", line)
    assert "which has only one value after tables[1].to[1].columns.town" in finding.message


def test_column_rules_of_all_levels_are_checked(folder):
    """Of the table and of the defaults. A declared column that is left out is no suggestion."""
    overrides = ["tables[1].columns.town=drop", "defaults.partition_by=[town]"]
    finding = folder.only(overrides=overrides)
    assert "defaults.partition_by names 'town', which tables[1].columns.town drops" in finding.message
    folder.change("      - sink: target\n\n", "      - {sink: lake, partition_by: [att], except_column_list: [at]}\n\n")
    assert folder.only().suggestion == "declared: 'id', 'at'"


def test_deletion_vectors_on_spark(folder):
    overrides = ["engine=spark", "tables[1].to[1].deletion_vectors=true"]
    assert folder.load(overrides=overrides).settings.resolve_lanes("public.orders")[1].options == {"deletion_vectors": True}
    (finding,) = folder.load(overrides=["defaults.deletion_vectors=true"]).warnings
    assert (finding.code, finding.file) == ("engine", "--set defaults.deletion_vectors")
    assert not folder.load(overrides=["defaults.deletion_vectors=false"]).warnings


def test_compaction_of_a_sink(folder):
    loaded = folder.load(overrides=["sinks.lake.compact_every=0", "sinks.raw.compact_every=500"])
    assert adapters.list_options(loaded.settings.sinks["lake"])["compact_every"] == 0
    assert adapters.list_options(loaded.settings.sinks["raw"])["compact_every"] == 500
    assert "compact_every" not in adapters.list_options(folder.load().settings.sinks["lake"])
    folder.change("    path: ./lake/cdc_events", "    dsn: postgresql://u:p@h/d\n    compact_every: 5")
    assert folder.only().code == "inapplicable"
    folder.change("    schema: mirror", "    schema: mirror\n    compact_every: 5")
    assert folder.only().code == "unknown_key"


def test_vacuum_durations_are_passed_in_seconds(folder):
    overrides = ["sinks.lake.vacuum_every=1 day", "sinks.raw.vacuum_retain=9 days", "defaults.vacuum_every=2 hours"]
    loaded = folder.load(overrides=[*overrides, "tables[1].to[1].vacuum_retain=8 days"])
    assert adapters.list_options(loaded.settings.sinks["lake"])["vacuum_every"] == 86_400
    assert adapters.list_options(loaded.settings.sinks["raw"])["vacuum_retain"] == 9 * 86_400
    lake = loaded.settings.resolve_lanes("public.orders")[1]
    assert lake.options == {"vacuum_every": 7200, "vacuum_retain": 8 * 86_400} and not loaded.warnings


@pytest.mark.parametrize("key", ["sinks.lake", "sinks.raw", "tables[1].to[1]", "defaults"])
def test_short_retention_is_a_warning(folder, key):
    (finding,) = folder.load(overrides=[f"{key}.vacuum_retain=6 days"]).warnings
    assert finding.code == "short_retention" and "shorter than the 7 days" in finding.message


@pytest.mark.parametrize("key", ["vacuum_every", "vacuum_retain"])
def test_postgresql_refuses_a_vacuum_schedule(folder, key):
    folder.change("    path: ./lake/cdc_events", f"    dsn: postgresql://u:p@h/d\n    {key}: 8 days")
    assert f"has a '{key}', which means nothing without 'path'" in folder.only().message
