"""A pipeline in code equals its config."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.employees import FEED, append_employees
from support.staff_in_code import FLOW, PARTS, write_config_file

from replicator import pipelines as dp
from replicator.application.operations.plan import list_plans
from replicator.settings import Loaded
from replicator.wiring.components import ConfiguredComponents
from replicator.wiring.configuration import read_config

FLOWS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"sequence_by": "sequenceNum"}, {"sequence_by": ["sequenceNum"]}),
    ({"sequence_by": ("country", "sequenceNum")}, {"sequence_by": ["country", "sequenceNum"]}),
    ({"ignore_null_updates": True}, {"ignore_null_updates": True}),
    ({"ignore_null_updates": False}, {"ignore_null_updates": False}),
    ({"ignore_null_updates_column_list": ["role"]}, {"ignore_null_updates_column_list": ["role"]}),
    ({"ignore_null_updates_except_column_list": ["role"]}, {"ignore_null_updates_except_column_list": ["role"]}),
    ({"partial_updates": "by_column"}, {"partial_updates": "by_column"}),
    ({"partial_updates": "ordered"}, {"partial_updates": "ordered"}),
    ({"apply_as_deletes": "operation = 'DELETE'"}, {"apply_as_deletes": "operation = 'DELETE'"}),
    ({"apply_as_truncates": "operation = 'TRUNCATE'"}, {"apply_as_truncates": "operation = 'TRUNCATE'"}),
    ({"column_list": ["id", "name"]}, {"column_list": ["id", "name"]}),
    ({"except_column_list": ["operation"]}, {"except_column_list": ["operation"]}),
    ({"stored_as_scd_type": 1}, {"policy": "scd1"}),
    ({"stored_as_scd_type": "2"}, {"policy": "scd2"}),
    (
        {"stored_as_scd_type": 2, "track_history_column_list": ["role"]},
        {"policy": "scd2", "track_history_column_list": ["role"]},
    ),
    (
        {"stored_as_scd_type": 2, "track_history_except_column_list": ["role"]},
        {"policy": "scd2", "track_history_except_column_list": ["role"]},
    ),
]
TABLES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"partition_cols": ["country"]}, {"partition_by": ["country"]}),
    ({"cluster_by": ["country"]}, {"cluster_by": ["country"]}),
    ({"table_properties": {"delta.enableChangeDataFeed": "true"}}, {"change_data_feed": True}),
    ({"table_properties": {"delta.enableDeletionVectors": False}}, {"deletion_vectors": False}),
]
MISTAKES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"apply_as_deletes": "operation ="}, {}),
    ({"column_list": ["id"], "except_column_list": ["role"]}, {}),
    ({"stored_as_scd_type": 3}, {}),
    ({"stored_as_scd_type": 2, "ignore_null_updates": True}, {}),
    ({"keys": "id"}, {}),
    ({"keys": []}, {}),
    ({"keys": ["id", "id"]}, {}),
    ({"ignore_null_updates": "maybe"}, {}),
    ({"partial_updates": "by_row"}, {}),
    ({"partial_updates": "by_column", "ignore_null_updates": True}, {}),
    ({"target": "lakes.employees"}, {"sink": "lakes"}),
    ({"target": "lake._replicator"}, {"into": "_replicator"}),
]


def entry(**said: Any) -> dict[str, Any]:
    return {"match": "employees", "source": "staff", "to": [{"sink": "lake", "into": "employees", "keys": ["id"], **said}]}


def in_yaml(folder: Path, said: dict[str, Any]) -> Loaded:
    return read_config(write_config_file(folder, tables=[entry(**said)]), None, ())


def same(code: Loaded, file: Loaded) -> None:
    """All but the places; and every path is below the same folder."""
    assert code.settings.model_dump(exclude={"tables"}) == file.settings.model_dump(exclude={"tables"})
    assert code.settings.resolve_lanes("employees") == file.settings.resolve_lanes("employees")
    assert code.root == file.root


@pytest.mark.slow
@pytest.mark.parametrize(("flow", "written"), FLOWS)
def test_flow_has_the_settings_and_plans_of_its_config(staff, tmp_path, flow, written):
    append_employees(tmp_path, FEED)
    staff.create_auto_cdc_flow(**FLOW, **flow)
    file = in_yaml(tmp_path, written)
    same(staff.check(), file)
    (code,), (yaml,) = staff.plan(), list_plans(ConfiguredComponents(file))
    assert code.pop("flow") == "lake.employees"
    assert "test_config_equivalence.py:" in code.pop("config") and "replicator.yaml" in yaml.pop("config")
    assert code == yaml and code["stages"]


def test_flow_from_snapshots_has_the_settings_of_its_config(tmp_path):
    source = {"staff": {"format": "rows", "transport": "snapshots", "path": "./employees"}}
    code = dp.Pipeline("staff", **{**PARTS, "sources": source}, root=tmp_path)
    tracked = {"track_history_except_column_list": ["role"]}
    code.create_auto_cdc_from_snapshot_flow("lake.employees", "staff.employees", ["id"], 2, **tracked)
    file = write_config_file(tmp_path, sources=source, tables=[entry(policy="scd2", **tracked)])
    same(code.check(), read_config(file, None, ()))


def test_every_parameter_has_a_case():
    said = {name for flow, _ in FLOWS for name in flow} | set(FLOW)
    assert said >= dp.pipeline.FLOW_KEYS


@pytest.mark.parametrize(("table", "written"), TABLES)
def test_table_has_the_options_of_its_config(tmp_path, monkeypatch, table, written):
    monkeypatch.chdir(tmp_path)
    staff = dp.Pipeline("staff", engine="spark", **PARTS)
    staff.create_streaming_table("lake.employees", **table)
    staff.create_auto_cdc_flow(**FLOW)
    file = read_config(write_config_file(tmp_path, engine="spark", tables=[entry(**written)]), None, ())
    same(staff.check(), file)


def test_pipeline_from_a_config_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKE", "lake-of-mine")
    more = {
        "sinks": {"lake": {"kind": "delta", "path": "./${LAKE}"}, "raw": {"kind": "event_log", "path": "./raw"}},
        "tables": [{"match": "employees", "source": "staff", "keys": ["id"], "to": [{"sink": "raw"}]}],
        "engine": "spark",
        "defaults": {"change_data_feed": True},
        "state": "./mine",
        "limits": {"depth": 8},
        "spark": {"spark.ui.enabled": False},
        "http": {"address": "127.0.0.1:0"},
    }
    given = {**more, "state": Path("mine"), "tables": tuple(more["tables"])}
    code = dp.Pipeline("staff", **{**PARTS, **given}, root=tmp_path)
    code.create_auto_cdc_flow("lake", "staff.employees")
    more["tables"][0]["to"].append({"sink": "lake"})
    file = read_config(write_config_file(tmp_path, **more), None, ())
    assert code.check().settings == file.settings
    assert code.config() == {"pipeline": "staff", **PARTS, **more, "state": "mine"}


def test_flows_are_added_to_the_tables_of_a_file(tmp_path):
    code = dp.Pipeline.from_config(write_config_file(tmp_path), overrides=["sinks.lake.path=./other"])
    code.create_auto_cdc_flow(**FLOW)
    code.create_auto_cdc_flow("lake.history", "staff.employees", ["id"], stored_as_scd_type=2, name="versions")
    tables = [entry()]
    tables[0]["to"].append({"sink": "lake", "into": "history", "keys": ["id"], "policy": "scd2"})
    file = read_config(write_config_file(tmp_path, tables=tables), None, ["sinks.lake.path=./other"])
    same(code.check(), file)
    assert len(code.check().settings.tables) == 1


@pytest.mark.parametrize(("flow", "written"), MISTAKES)
def test_errors_equal_those_of_the_config_with_the_line_of_the_call(staff, tmp_path, flow, written):
    said = written or flow
    with pytest.raises(dp.ConfigError) as of_file:
        in_yaml(tmp_path, said)
    line = sys._getframe().f_lineno + 1
    staff.create_auto_cdc_flow(**{**FLOW, **flow})
    with pytest.raises(dp.ConfigError) as of_code:
        staff.check()
    assert words(of_code.value) == words(of_file.value)
    places = {(Path(f.file).name, f.line) for f in of_code.value.findings}
    assert places == {("test_config_equivalence.py", line)}


def test_each_flow_of_a_table_has_its_own_line(staff):
    staff.create_auto_cdc_flow(**FLOW)
    line = sys._getframe().f_lineno + 1
    staff.create_auto_cdc_flow("lake.other", "staff.employees", ["id"], column_list=[])
    with pytest.raises(dp.ConfigError) as caught:
        staff.check()
    assert [finding.line for finding in caught.value.findings] == [line]


def test_all_errors_are_reported_at_once(staff):
    staff.create_auto_cdc_flow(**FLOW, apply_as_deletes="operation =")
    staff.create_auto_cdc_flow("lake.other", "nobody.employees")
    with pytest.raises(dp.ConfigError) as caught:
        staff.plan()
    assert sorted(f.code for f in caught.value.findings) == ["condition", "unknown_source"]
    with pytest.raises(dp.ConfigError):
        staff.run(until_caught_up=True)


def words(error: dp.ConfigError) -> list[tuple[str, str, str]]:
    return sorted((f.code, f.message, f.suggestion) for f in error.findings)
