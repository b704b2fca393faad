"""A feed of rows with its own order and operations, from another program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from support.cli_program import run_program
from support.employees import FEED, STAYS, VERSIONS, append_employees
from support.next_layer import LONG_ON_SPARK, run_until_caught_up

CONFIG = """\
pipeline: staff
sources:
  staff: {format: rows, transport: delta, path: ./feed/employees}
sinks:
  lake: {kind: delta, path: ./lake}
dead_letters: {path: ./lake/_replicator/dead_letters}
tables:
  - match: employees
    source: staff
    keys: [id]
    sequence_by: sequenceNum
    apply_as_deletes: operation = 'DELETE'
    except_column_list: [operation, sequenceNum]
    to: [{sink: lake}]
http: {address: "127.0.0.1:0"}
"""


def make_project(folder: Path, config: str = CONFIG) -> Path:
    (folder / "config").mkdir(exist_ok=True)
    (folder / "config" / "replicator.yaml").write_text(config)
    return folder


def read_mirror(folder: Path) -> list[tuple]:
    table = DeltaTable(str(folder / "lake" / "employees")).to_pyarrow_table()
    assert [name for name in table.column_names if not name.startswith("_")] == ["id", "name", "role", "country"]
    return sorted((row["id"], row["name"], row["role"]) for row in table.to_pylist())


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_employees_in_one_batch(tmp_path: Path, engine: str) -> None:
    append_employees(make_project(tmp_path), FEED)
    said = run_until_caught_up(tmp_path, engine)
    assert read_mirror(tmp_path) == STAYS
    (lane,) = said["result"]["lanes"]
    assert sum(lane["counts"].values()) == len(FEED)


BOTH = CONFIG.replace("[{sink: lake}]", "[{sink: lake}, {sink: lake, into: employees_historical, policy: scd2}]")


def read_history(folder: Path) -> list[tuple]:
    rows = DeltaTable(str(folder / "lake" / "employees_historical")).to_pyarrow_table().to_pylist()
    assert not {"operation", "sequenceNum"} & set(rows[0])
    assert all((r["__START_AT"], r["__END_AT"]) == (r["_cdc_seq_1"], r["_cdc_end_seq_1"]) for r in rows)
    return sorted((r["id"], r["name"], r["role"], r["__START_AT"], r["__END_AT"]) for r in rows)


@pytest.mark.parametrize("engine", ["local", LONG_ON_SPARK])
def test_employees_current_and_historical(tmp_path: Path, engine: str) -> None:
    """In one batch, and the late rows after it."""
    late = [FEED[5], FEED[7]]
    append_employees(make_project(tmp_path, BOTH), [row for row in FEED if row not in late])
    run_until_caught_up(tmp_path, engine)
    append_employees(tmp_path, late)
    run_until_caught_up(tmp_path, "local")
    assert read_mirror(tmp_path) == STAYS
    assert read_history(tmp_path) == VERSIONS


@pytest.mark.slow
@pytest.mark.parametrize("feed", [pytest.param(FEED, marks=pytest.mark.long), FEED[::-1]], ids=["in order", "backwards"])
def test_employees_historical_one_by_one(tmp_path: Path, feed: list[tuple]) -> None:
    make_project(tmp_path, BOTH)
    for row in feed:
        append_employees(tmp_path, [row])
        run_until_caught_up(tmp_path, "local")
    assert read_mirror(tmp_path) == STAYS
    assert read_history(tmp_path) == VERSIONS


@pytest.mark.long
def test_employees_one_by_one(tmp_path: Path) -> None:
    make_project(tmp_path)
    for row in FEED:
        append_employees(tmp_path, [row])
        run_until_caught_up(tmp_path, "local")
    assert read_mirror(tmp_path) == STAYS


def test_plan_describes_the_policy_of_the_rows(tmp_path: Path) -> None:
    append_employees(make_project(tmp_path), FEED)
    said = run_program(tmp_path, "plan").stdout
    assert (
        "policy scd1, deletes by condition, in the order of (sequenceNum), without columns (operation, sequenceNum)" in said
    )


def test_rows_without_a_sequence_value_are_dead_letters(tmp_path: Path) -> None:
    append_employees(make_project(tmp_path), [*FEED[:4], (7, "Noone", "ghost", "NL", "INSERT", None), *FEED[4:]])
    said = run_until_caught_up(tmp_path, "local")
    assert read_mirror(tmp_path) == STAYS
    assert said["result"]["lanes"][0]["counts"]["rejected"] == 1
    listed = run_program(tmp_path, "dlq", "list", "--json").stdout
    (letter,) = json.loads(listed)["result"]
    assert (letter["code"], letter["stage"], letter["lane"], letter["table"]) == (
        "SEQUENCE",
        "shape",
        "lake.employees",
        "employees",
    )
    assert "column 'sequenceNum'" in letter["sentence"] and "Noone" not in letter["sentence"]
    assert (
        "Noone"
        in DeltaTable(str(tmp_path / "lake" / "_replicator" / "dead_letters"))
        .to_pyarrow_table()["record"][0]
        .as_py()
        .decode()
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "sequence_by: sequenceNum",
            "sequence_by: sequencenum",
            "'sequence_by' names column 'sequencenum', which table employees",
        ),
        ("operation = 'DELETE'", "operation = 8", "compares column 'operation' (string) with a value that is not text"),
        ("[operation, sequenceNum]", "[operation, seqNum]", "'except_column_list' names column 'seqNum'"),
    ],
)
def test_rules_that_do_not_fit_the_table_suspend_the_lane(tmp_path: Path, old: str, new: str, said: str) -> None:
    append_employees(make_project(tmp_path, CONFIG.replace(old, new)), FEED)
    lane = run_until_caught_up(tmp_path, "local", code=2)["result"]["lanes"][0]
    assert (lane["id"], lane["status"]) == ("lake.employees", "suspended")
    assert said in lane["error"] and "replicator.yaml:" in lane["next_step"]
    assert lane["lag_records"] is None, "places of rows are no numbers of records"


def test_changed_order_is_another_rule(tmp_path: Path) -> None:
    """The rows of the target have other sequences, which cannot be compared with the new ones."""
    append_employees(make_project(tmp_path, CONFIG.replace("    sequence_by: sequenceNum\n", "")), FEED)
    run_until_caught_up(tmp_path, "local")
    make_project(tmp_path)
    append_employees(tmp_path, FEED[:1])
    lane = run_until_caught_up(tmp_path, "local", code=2)["result"]["lanes"][0]
    assert (
        "'scd1 by id in the order of sequenceNum (number)'" in lane["error"] and "resync lake.employees" in lane["next_step"]
    )
