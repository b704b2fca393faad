"""Names that a target cannot have are refused after the row transforms, with a remedy."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pytest
from support.debezium_events import make_payload, make_raw_records

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.delta.tables import refuse_names
from adapters.postgres.names import check_columns
from replicator.domain.errors import Fatal
from replicator.domain.patterns import ColumnSelection
from replicator.domain.policy.policies import plan_for
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.columns import ColumnRule, ColumnTransforms
from replicator.domain.transform.rows import NO_ROW_TRANSFORMS, RowTransforms

LONG = "v" * 64
RULES: dict[str, Callable[[str], RowTransforms]] = {
    "rename": lambda name: RowTransforms(column_transforms=ColumnTransforms(((name, ColumnRule(rename="other")),))),
    "drop": lambda name: RowTransforms(column_transforms=ColumnTransforms(((name, ColumnRule(drop=True)),))),
    "column_list": lambda _: RowTransforms(columns=ColumnSelection(("id", "val"))),
    "except_column_list": lambda name: RowTransforms(columns=ColumnSelection((name,), excluded=True)),
}


def learnt(name: str) -> TableSpec:
    """A table with a column of this name, as its records say it."""
    decoder = DebeziumJsonDecoder({"schema": {"public.t": {"id": "int64", "val": "string", name: "string"}}})
    return decoder.learn(
        make_raw_records([json.dumps(make_payload(after={"id": 1})).encode()], [b'{"id":1}']), "public.t", "x"
    )


def refuse(table: TableSpec, shape: RowTransforms) -> None:
    made = plan_for("scd1", table, row_transforms=shape).table
    refuse_names("t", made.columns)
    check_columns(made.column_names, "t")


@pytest.mark.parametrize("name", ["_cdc_op", "__END_AT", "_event_id", LONG, "VAL", "ctid"])
@pytest.mark.parametrize("rule", RULES)
def test_refused_name_is_accepted_after_a_rename_rule(name: str, rule: str) -> None:
    table = learnt(name)
    with pytest.raises(Fatal) as refused:
        refuse(table, NO_ROW_TRANSFORMS)
    assert f"columns: {{'{name}': {{rename: NAME}}}}" in refused.value.next_step
    refuse(table, RULES[rule](name))


def test_keys_that_differ_in_case_only_are_refused() -> None:
    columns = (Column("id", pa.int64()), Column("ID", pa.int64()))
    table = TableSpec("public.t", columns, ("id", "ID"))
    with pytest.raises(Fatal, match="differ in case only"):
        plan_for("scd1", table)
    assert plan_for("scd1", table, row_transforms=RULES["rename"]("ID")).table.keys == ("id", "other")
