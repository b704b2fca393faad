"""`projections` and `lineage`: options and refusals."""

from __future__ import annotations

import pytest

from replicator.settings import ConfigError
from replicator.settings.projections import sort_projections

SQL = "sql: ./sql/x.sql"


def test_options_of_a_projection(folder):
    assert folder.load().settings.projections == {}
    more = "sink: lake, partition_by: city, parameters: {d: 2021-10-17}"
    said = f"projections={{gold: {{{SQL}, inputs: {{Users: lake.customers}}, {more}}}}}"
    (gold,) = folder.load(overrides=[said]).settings.projections.values()
    assert gold.sql == str(folder.root / "sql" / "x.sql")
    assert gold.inputs == {"users": "lake.customers"}
    assert (gold.refresh, gold.parameters) == ("on_change", {"d": "2021-10-17"})


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (f"{SQL}, inputs: {{}}, sink: lake", "type"),
        (f"{SQL}, inputs: {{users: lake.customers}}, sink: lak", "unknown_sink"),
        (f"{SQL}, inputs: {{users: lake.customers}}, sink: raw", "not_yet_supported"),
        (f"{SQL}, inputs: {{users: target.customerz}}, sink: lake", "unknown_table"),
        (f"{SQL}, inputs: {{users: target}}, sink: lake", "input"),
        (f"{SQL}, inputs: {{users: lak.customers}}, sink: lake", "unknown_sink"),
        (f"{SQL}, inputs: {{users: lake}}, sink: lake", "input"),
        (f"{SQL}, inputs: {{users: raw.customers}}, sink: lake", "input"),
        (f"{SQL}, inputs: {{users: event_store}}, sink: lake", "unknown_table"),
        (f"{SQL}, inputs: {{users: lake.customers}}, sink: lake, into: orders", "same_target"),
        (f"{SQL}, inputs: {{users: lake.gold}}, sink: lake", "circle"),
        (f"{SQL}, inputs: {{users: lake.customers}}, sink: lake, refresh: often", "refresh"),
        (f"{SQL}, inputs: {{users: lake.customers}}, sink: lake, refresh: 0.5", "refresh"),
        (f"{SQL}, inputs: {{users: lake.customers}}, sink: lake, parameters: {{x: [1]}}", "type"),
        (f"{SQL}, inputs: {{users: lake.customers}}, sink: lake, key: [id]", "unknown_key"),
        ("inputs: {users: lake.customers}, sink: lake", "missing"),
    ],
)
def test_invalid_options_are_refused(folder, said, code):
    finding = folder.only(overrides=[f"projections={{gold: {{{said}}}}}"])
    assert finding.code == code, finding


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_tables_may_be_in_postgresql(folder, engine):
    said = f"projections={{gold: {{{SQL}, inputs: {{users: target.orders_now}}, sink: target}}}}"
    assert folder.load(overrides=[said, f"engine={engine}"]).settings.projections


def test_circular_projections_and_shared_targets_are_refused(folder):
    one = f"one: {{{SQL}, inputs: {{x: lake.two}}, sink: lake}}"
    two = f"two: {{{SQL}, inputs: {{x: lake.one, y: lake.customers}}, sink: lake}}"
    assert {f.code for f in folder.findings(overrides=[f"projections={{{one}, {two}}}"])} == {"circle"}
    other = f"other: {{{SQL}, inputs: {{x: lake.customers}}, sink: lake, into: two}}"
    two = f"two: {{{SQL}, inputs: {{x: lake.customers}}, sink: lake}}"
    assert folder.only(overrides=[f"projections={{{two}, {other}}}"]).code == "same_target"


def test_projections_are_ordered_by_their_inputs():
    inputs = {"c": {"x": "lake.b"}, "b": {"x": "lake.a", "y": "lake.users"}, "a": {"x": "lake.users"}}
    targets = {name: ("lake", name) for name in inputs}
    assert sort_projections(inputs, targets) == ["a", "b", "c"]


def test_lineage(folder):
    said = folder.load(overrides=["lineage={url: 'http://h:5000/api/v1/lineage', token: s3cr3t}"]).settings
    assert "s3cr3t" not in repr(said) + said.model_dump_json()
    for wrong, code in (
        ("{}", "place"),
        ("{path: ./x, url: 'http://h/x'}", "place"),
        ("{path: ./x, token: t}", "inapplicable"),
    ):
        with pytest.raises(ConfigError) as refused:
            folder.load(overrides=[f"lineage={wrong}"])
        assert code in {finding.code for finding in refused.value.findings}
