"""What a lane does about changes of its schema, as the config says it."""

from __future__ import annotations

import pytest

from replicator.domain.schema_evolution import SchemaChangeKind, SchemaChangeMode, SchemaRules

SAID = "        schema_changes: evolve"


def rules(folder, *overrides):
    _, lake = folder.load(overrides=overrides).settings.resolve_lanes("public.orders")
    return lake.schema_rules


@pytest.mark.parametrize("mode", list(SchemaChangeMode)[1:])
def test_one_mode_is_that_of_every_kind(folder, mode):
    folder.change(SAID, f"        schema_changes: {mode}")
    assert {rules(folder).get_mode(kind) for kind in SchemaChangeKind} == {mode}


def test_a_mapping_says_it_for_each_kind(folder):
    every = ", ".join(f"{kind}: fail" for kind in SchemaChangeKind)
    folder.change(SAID, f"        schema_changes: {{{every}}}")
    assert {rules(folder).get_mode(kind) for kind in SchemaChangeKind} == {SchemaChangeMode.FAIL}


def test_others_are_those_that_are_not_named_and_the_nearest_level_counts_whole(folder):
    folder.change(SAID, "        schema_changes: {dropped: quarantine, others: try_evolve}")
    found = rules(folder, "defaults.schema_changes={added: fail}")
    assert found == SchemaRules({SchemaChangeKind.DROPPED: SchemaChangeMode.QUARANTINE}, SchemaChangeMode.TRY_EVOLVE)
    assert (found.get_mode(SchemaChangeKind.ADDED), found.get_mode(SchemaChangeKind.DROPPED)) == (
        SchemaChangeMode.TRY_EVOLVE,
        SchemaChangeMode.QUARANTINE,
    )
    assert found.description == "dropped: quarantine, others: try_evolve"


def test_columns_that_go_and_columns_that_are_renamed(folder):
    folder.change(SAID, "        dropped_columns: remove\n        renamed_columns: {a: b, c: d}")
    assert rules(folder) == SchemaRules(removes=True, renames=(("a", "b"), ("c", "d")))


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        ("schema_changes: evolv", "unknown_value", "evolve"),
        ("schema_changes: {add: evolve}", "unknown_key", "'added'"),
        ("schema_changes: {added: evolv}", "unknown_value", "evolve"),
        ("dropped_columns: drop", "unknown_value", "keep, remove"),
        ("renamed_columns: {a: b, c: b}", "contradiction", "renames two columns to one"),
        ("renamed_columns: {a: b, b: c}", "contradiction", "one twice"),
    ],
)
def test_mistakes_have_their_line(folder, said, code, words):
    line = folder.change(SAID, f"        {said}")
    (finding,) = folder.findings()
    assert finding.code == code and words in f"{finding.message} {finding.suggestion}"
    assert finding.line in (line, line - 1, line - 2)
