"""Calls that are refused at once: values that no config can have, and unsupported parameters."""

from __future__ import annotations

import pytest
from support.staff_in_code import FLOW, PARTS

from replicator import pipelines as dp
from replicator.domain.errors import ConfigProblem


class Column:
    """What `pyspark.sql.functions.expr` returns, as far as anybody may look at it."""

    def __str__(self) -> str:
        return "Column<'operation = DELETE'>"

    def __bool__(self) -> bool:
        raise ValueError("Cannot convert column into bool")

    def __eq__(self, other: object) -> bool:
        raise ValueError("Cannot convert column into bool")

    __hash__ = None


@pytest.mark.parametrize(
    ("flow", "said"),
    [
        ({"apply_as_deletes": Column()}, "'apply_as_deletes' of flow 'lake.employees' is a Column"),
        ({"keys": [Column()]}, "'keys' of flow 'lake.employees'[0] is a Column"),
        ({"sequence_by": Column()}, "'sequence_by' of flow 'lake.employees' is a Column"),
        ({"stored_as_scd_type": Column()}, "'stored_as_scd_type' of flow 'lake.employees' is a Column"),
    ],
)
def test_foreign_column_objects_are_refused(staff, flow, said):
    with pytest.raises(dp.ConfigError, match=r"import col, expr and struct from replicator\.pipelines") as caught:
        staff.create_auto_cdc_flow(**{**FLOW, **flow})
    (finding,) = caught.value.findings
    assert said in finding.message and finding.file.endswith("test_refused_calls.py") and finding.line


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"once": True}, "no parameter 'once'; use a separate pipeline for the backfill"),
        ({"columns_to_update": "changed"}, "'columns_to_update'; use 'ignore_null_updates'"),
        ({"system_sequence_by": "at"}, "'system_sequence_by'; leave it out"),
        ({"spark_conf": {"a": "b"}}, "Pipeline(..., spark={...})"),
        ({"where": "id > 1"}, "no parameter 'where'"),
        ({"flow_name": "x"}, "use 'name'"),
        ({"where": Column()}, "no parameter 'where'"),
        (
            {"stored_as_scd_type": "bitemporal"},
            "'bitemporal', which is not supported; use 2, and add an event log",
        ),
        ({"keys": {1, 2}}, "is a set, which a config cannot contain"),
        ({"source": "employees"}, "names no table; write SOURCE.TABLE, such as 'staff.employees'"),
        ({"target": "employees"}, "names no sink of the pipeline; write SINK.TABLE, such as 'lake.employees'"),
        ({"target": "lake."}, "write SINK.TABLE"),
        ({"target": None}, "must be text"),
        ({"source": lambda version: None}, "'source' of a flow must be text"),
    ],
)
def test_unsupported_parameters_are_refused_with_an_alternative(staff, given, said):
    with pytest.raises(dp.ConfigError) as caught:
        staff.create_auto_cdc_flow(**{**FLOW, **given})
    assert said in str(caught.value)
    assert staff.config()["tables"] == []


def test_default_values_of_unsupported_parameters_are_accepted(staff):
    plain = dp.Pipeline("staff", **PARTS)
    plain.create_auto_cdc_flow(**FLOW)
    staff.create_auto_cdc_flow(**FLOW, once=False, columns_to_update=None, track_history_column_list=None)
    assert staff.config()["tables"] == plain.config()["tables"] != []
    staff.check()


def test_unknown_parameter_is_a_type_error(staff):
    with pytest.raises(TypeError, match="no parameter 'aply_as_deletes'; did you mean 'apply_as_deletes'"):
        staff.create_auto_cdc_flow(**FLOW, aply_as_deletes="id = 1")
    with pytest.raises(TypeError, match="no parameter 'partition_columns'; did you mean 'partition_cols'"):
        staff.create_streaming_table("lake.employees", partition_columns=["a"])


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"comment": "x"}, "no parameter 'comment'"),
        ({"partition_by": ["a"]}, "use 'partition_cols'"),
        ({"table_properties": {"delta.appendOnly": "true"}}, "'delta.appendOnly' is not supported; use"),
        ({"table_properties": {"delta.enableChangeDatafeed": "true"}}, "did you mean 'delta.enableChangeDataFeed'"),
        ({"table_properties": {"delta.enableChangeDataFeed": "yes"}}, "must be true or false"),
        ({"cluster_by": [Column()]}, "is a Column"),
    ],
)
def test_unsupported_parameters_of_tables_are_refused(staff, table, said):
    with pytest.raises(dp.ConfigError) as caught:
        staff.create_streaming_table("lake.employees", **table)
    assert said in str(caught.value)


def test_duplicate_names_are_refused(staff):
    staff.create_auto_cdc_flow(**FLOW)
    with pytest.raises(dp.ConfigError, match=r"there is already a flow 'lake.employees', at .*another target"):
        staff.create_auto_cdc_flow(**FLOW)
    with pytest.raises(dp.ConfigError, match="another 'name'"):
        staff.create_auto_cdc_flow("lake.b", "staff.employees", name="lake.employees")
    staff.create_streaming_table("lake.employees", partition_cols=["country"])
    with pytest.raises(dp.ConfigError, match=r"table 'lake.employees' is already declared, at .*test_refused_calls.py:"):
        staff.create_streaming_table("lake.employees")


def test_options_of_a_table_without_flow_are_refused(staff):
    staff.create_auto_cdc_flow(**FLOW)
    staff.create_streaming_table("lake.employes", partition_cols=["country"])
    with pytest.raises(dp.ConfigError, match=r"no flow writes table 'lake\.employes'; there are flows into"):
        staff.check()


@pytest.mark.parametrize("value", [{1: "a"}, {"format": b"rows"}])
def test_parts_must_be_plain_data(value):
    with pytest.raises(dp.ConfigError):
        dp.Pipeline("staff", **{**PARTS, "sources": {"staff": value}})


def test_recursive_value_is_refused(staff):
    keys: list = []
    keys.append(keys)
    with pytest.raises(dp.ConfigError, match="nested more than"):
        staff.create_auto_cdc_flow(**{**FLOW, "keys": keys})


def test_arguments_are_copied(staff):
    keys = ["id"]
    staff.create_auto_cdc_flow(**{**FLOW, "keys": keys})
    keys.append("name")
    first = staff.config()
    assert staff.config() == first
    first["tables"].clear()
    first["sinks"].clear()
    assert [one["keys"] for one in staff.config()["tables"][0]["to"]] == [["id"]]
    assert staff.config()["sinks"] == PARTS["sinks"]


def test_functions_need_a_current_pipeline(staff):
    with pytest.raises(ConfigProblem, match=r"create_auto_cdc_flow\(\) is called outside of a pipeline"):
        dp.create_auto_cdc_flow(**FLOW)
    with staff as entered:
        assert entered is staff
        with dp.Pipeline("inner", **PARTS) as inner:
            dp.create_auto_cdc_flow(**FLOW)
        dp.create_streaming_table("lake.history", partition_cols=["country"])
        dp.create_auto_cdc_flow("lake.history", "staff.employees", ["id"])
    with pytest.raises(ConfigProblem):
        dp.create_streaming_table("lake.more")
    targets = [[f"{e['sink']}.{e['into']}" for t in p.config()["tables"] for e in t["to"]] for p in (staff, inner)]
    assert targets == [["lake.history"], ["lake.employees"]]
    assert staff.check().describe_origin("tables", 0, "to", 0).rpartition(":")[0].endswith("test_refused_calls.py")
