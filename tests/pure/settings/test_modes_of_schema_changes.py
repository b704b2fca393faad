"""Reactions of a lane to schema changes, per kind."""

from __future__ import annotations

import pytest

from replicator.domain.schema_evolution import SchemaChangeKind, SchemaChangeMode, SchemaRules

SAID = "        schema_changes: evolve"


def rules(folder, *overrides):
    _, lake = folder.load(overrides=overrides).settings.resolve_lanes("public.orders")
    return lake.schema_rules


@pytest.mark.parametrize("mode", list(SchemaChangeMode)[1:])
def test_single_mode_applies_to_every_kind(folder, mode):
    folder.change(SAID, f"        schema_changes: {mode}")
    assert {rules(folder).get_mode(kind) for kind in SchemaChangeKind} == {mode}


def test_mapping_has_a_mode_per_kind(folder):
    every = ", ".join(f"{kind}: fail" for kind in SchemaChangeKind)
    folder.change(SAID, f"        schema_changes: {{{every}}}")
    assert {rules(folder).get_mode(kind) for kind in SchemaChangeKind} == {SchemaChangeMode.FAIL}


def test_others_covers_unnamed_kinds_and_the_nearest_level_wins(folder):
    folder.change(SAID, "        schema_changes: {dropped: quarantine, others: try_evolve}")
    found = rules(folder, "defaults.schema_changes={added: fail}")
    assert found == SchemaRules({SchemaChangeKind.DROPPED: SchemaChangeMode.QUARANTINE}, SchemaChangeMode.TRY_EVOLVE)
    assert (found.get_mode(SchemaChangeKind.ADDED), found.get_mode(SchemaChangeKind.DROPPED)) == (
        SchemaChangeMode.TRY_EVOLVE,
        SchemaChangeMode.QUARANTINE,
    )
    assert found.description == "dropped: quarantine, others: try_evolve"


def test_dropped_and_renamed_columns(folder):
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
def test_invalid_options_have_their_line(folder, said, code, words):
    line = folder.change(SAID, f"        {said}")
    (finding,) = folder.findings()
    assert finding.code == code and words in f"{finding.message} {finding.suggestion}"
    assert finding.line in (line, line - 1, line - 2)
