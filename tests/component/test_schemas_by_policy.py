"""Columns are renamed, removed and widened under every policy, in targets and side tables, with restarts in between."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from support.debezium_events import ID, make_column
from support.schema_changes import Project, make_archive_record

pytestmark = pytest.mark.postgres

SINKS = ("lake", "mirror")
POLICIES = {
    "scd1": "",
    "soft": ", deletes: soft",
    "columns": ", partial_updates: by_column",
    "scd2": ", policy: scd2",
    "append": ", policy: append",
}
RENAMES = ", dropped_columns: remove, renamed_columns: {name: title}"
SMALL, NAME, TITLE = (
    make_column("id", "int32", optional=False),
    make_column("name", "string"),
    make_column("title", "string"),
)
N, LONG = make_column("n", "int32"), make_column("n", "int64")
OLD = [SMALL, NAME, N, make_column("gone", "string")]
NEW = [ID, TITLE, LONG]
BIG = 5_000_000_000
HIDDEN = "__debezium_unavailable_value"


def records(table: str) -> list[dict[str, object]]:
    """A row deleted before the change and one after it. A key and a value that only the new types can store. An
    unchanged value, and a repeated change of an old key."""
    first = [
        make_archive_record(table, i, OLD, [SMALL], after={"id": i, "name": f"n{i}", "n": i, "gone": "g"}) for i in range(4)
    ]
    deleted = make_archive_record(table, 4, OLD, [SMALL], op="d", before={"id": 0, "name": "n0", "n": 0, "gone": "g"})
    later = [
        make_archive_record(table, 5, NEW, [ID], op="u", after={"id": 1, "title": "t1", "n": BIG}),
        make_archive_record(table, 6, NEW, [ID], after={"id": BIG, "title": "big", "n": BIG}),
        make_archive_record(table, 7, NEW, [ID], op="u", after={"id": 2, "title": HIDDEN, "n": 22}),
        make_archive_record(table, 8, NEW, [ID], op="d", before={"id": 3, "title": None, "n": None}),
        make_archive_record(table, 9, NEW, [ID], op="d", before={"id": BIG, "title": "big", "n": BIG}),
    ]
    return [*first, deleted, *later]


@pytest.mark.parametrize("cuts", [(), pytest.param((5,), marks=pytest.mark.long), (3, 6, 8)], ids=str)
def test_rows_do_not_depend_on_restarts(tmp_path, postgres_dsn, cuts):
    project = Project(tmp_path, {table: options + RENAMES for table, options in POLICIES.items()}, postgres_dsn)
    for start, end in zip([0, *cuts], [*cuts, 10], strict=True):
        for table in POLICIES:
            project.feed(f"{table}-{start}", records(table)[start:end])
        for lane in project.run().values():
            assert (lane["error"], lane["counts"]["rejected"]) == (None, 0), lane
    one, two = {"id": 1, "title": "t1", "n": BIG}, {"id": 2, "title": "n2", "n": 22}
    before = [{"id": i, "title": f"n{i}", "n": i} for i in range(4)]
    big = {"id": BIG, "title": "big", "n": BIG}
    expected = {
        "scd1": [one, two],
        "soft": [before[0], one, two, before[3], big],
        "columns": [one, two],
        "scd2": [before[0], before[1], one, before[2], two, before[3], big],
    }
    for sink in SINKS:
        for table, rows in expected.items():
            found = project.rows(sink, table)
            assert sorted(found, key=str) == sorted(rows, key=str), (sink, table)
        assert len(project.rows(sink, "append")) == 10
        assert {"id": 2, "title": None, "n": 22} in project.rows(sink, "append")


def read_missing_names(project: Project, sink: str, table: str) -> dict[Any, Any]:
    """`_cdc_unsent` by `n`."""
    if sink == "lake":
        rows = DeltaTable(str(project.folder / "lake" / table)).to_pyarrow_table().select(["n", "_cdc_unsent"]).to_pylist()
        return {row["n"]: row["_cdc_unsent"] for row in rows}
    with psycopg.connect(project.dsn or "") as connection:
        return dict(connection.execute(f'SELECT n, _cdc_unsent FROM "{table}"').fetchall())


def make_partial_changes(table: str) -> list[dict[str, object]]:
    """Two updates do not send two columns, of which then one is renamed and the other is removed. The last change is
    older than the updates: they have its values."""

    def update(offset: int, at: int, **row: object) -> dict[str, object]:
        columns, keys = (OLD, [SMALL]) if "gone" in row else (NEW, [ID])
        return make_archive_record(table, offset, columns, keys, op="u", at=at, after={"id": 1, **row})

    return [
        make_archive_record(table, 0, OLD, [SMALL], after={"id": 1, "name": "n1", "n": 1, "gone": "g"}),
        update(1, 1200, name=HIDDEN, n=2, gone=HIDDEN),
        update(2, 1300, name=HIDDEN, n=2, gone=HIDDEN),
        update(3, 1400, title=HIDDEN, n=3),
        update(4, 1500, title="t1", n=4),
        update(5, 1100, title="late", n=0),
    ]


@pytest.mark.parametrize("cuts", [(3,), pytest.param((), marks=pytest.mark.long)], ids=str)
def test_stored_rows_lack_values_of_renamed_and_removed_columns(tmp_path, postgres_dsn, cuts):
    project = Project(tmp_path, {table: POLICIES[table] + RENAMES for table in ("scd2", "append")}, postgres_dsn)
    for start, end in zip([0, *cuts], [*cuts, 6], strict=True):
        for table in ("scd2", "append"):
            project.feed(f"{table}-{start}", make_partial_changes(table)[start:end])
        for lane in project.run().values():
            assert (lane["error"], lane["counts"]["rejected"]) == (None, 0), lane
    for sink in SINKS:
        titles = {row["n"]: row["title"] for row in project.rows(sink, "scd2")}
        assert titles == {0: "late", 1: "n1", 2: "late", 3: "late", 4: "t1"}, sink
        for table in ("scd2", "append"):
            expected = {0: None, 1: None, 2: ["title"], 3: ["title"], 4: None}
            assert read_missing_names(project, sink, table) == expected, (sink, table)


def make_late_parts(table: str) -> list[dict[str, object]]:
    """Parts of rows in another order than their sequence, before and after a column is renamed and another removed."""

    def change(offset: int, at: int, key: int, op: str = "u", **row: object) -> dict[str, object]:
        columns, keys = (OLD, [SMALL]) if "gone" in row else (NEW, [ID])
        return make_archive_record(table, offset, columns, keys, op=op, at=at, after={"id": key, **row})

    first = [
        change(0, 1200, 1, name="early", n=2, gone="g"),
        change(1, 1400, 1, name=HIDDEN, n=4, gone=HIDDEN),
        change(2, 1400, 2, name=HIDDEN, n=4, gone=HIDDEN),
        make_archive_record(table, 3, OLD, [SMALL], op="d", at=1100, before={"id": 3, "name": "", "n": 0, "gone": ""}),
        change(4, 1400, 3, name="now", n=4, gone=HIDDEN),
        change(5, 1400, 4, name=HIDDEN, n=4, gone=HIDDEN),
    ]
    return [
        *first,
        change(6, 1300, 1, title="late", n=3),
        change(7, 1100, 1, title="too late", n=1),
        change(8, 1300, 2, title="late", n=3),
        change(9, 1300, 3, title="too late", n=3),
        change(10, 1050, 3, title="deleted", n=0),
    ]


@pytest.mark.parametrize("cuts", [(6,), pytest.param((6, 8), marks=pytest.mark.long)], ids=str)
def test_late_parts_of_a_renamed_column_are_compared_with_its_last_change(tmp_path, postgres_dsn, cuts):
    project = Project(tmp_path, {"columns": POLICIES["columns"] + RENAMES}, postgres_dsn)
    for start, end in zip([0, *cuts], [*cuts, 11], strict=True):
        project.feed(f"columns-{start}", make_late_parts("columns")[start:end])
        for lane in project.run().values():
            assert (lane["error"], lane["counts"]["rejected"]) == (None, 0), lane
    for sink in SINKS:
        titles = {row["id"]: row["title"] for row in project.rows(sink, "columns")}
        assert titles == {1: "late", 2: "late", 3: "now", 4: None}, sink


AGAIN, TEXT = [ID, NAME, N], make_column("n", "string")


def make_records_with_readded_column(table: str) -> list[dict[str, object]]:
    """`n` of the first row belongs to a dropped column, and the second row changed after that. Then two rows arrive
    with another `n`."""
    first = [make_archive_record(table, i, AGAIN, [ID], after={"id": i, "name": f"n{i}", "n": i}) for i in range(3)]
    ended = make_archive_record(table, 3, AGAIN, [ID], op="u", after={"id": 0, "name": "again", "n": 0})
    without = make_archive_record(table, 4, [ID, NAME], [ID], op="u", after={"id": 1, "name": "t1"})
    later = [
        make_archive_record(table, 5 + i, [ID, NAME, TEXT], [ID], op="u", after={"id": 2 + i, "name": "", "n": "x"})
        for i in range(2)
    ]
    return [*first, ended, without, *later]


@pytest.mark.parametrize("cuts", [(), (5,), pytest.param((2, 4, 6), marks=pytest.mark.long)], ids=str)
def test_readded_column_has_none_of_its_old_values(tmp_path, postgres_dsn, cuts):
    project = Project(tmp_path, POLICIES, postgres_dsn)
    for start, end in zip([0, *cuts], [*cuts, 7], strict=True):
        for table in POLICIES:
            project.feed(f"{table}-{start}", make_records_with_readded_column(table)[start:end])
        for lane in project.run().values():
            assert (lane["error"], lane["counts"]["rejected"]) == (None, 0), lane
    current = [(0, "again", None), (1, "t1", None), (2, "", "x"), (3, "", "x")]
    ended = [(0, "n0", "0"), (1, "n1", "1")]
    expected = {
        **dict.fromkeys(("scd1", "soft", "columns"), current),
        "scd2": [*ended, (2, "n2", None), *current],
        "append": [*ended, (2, "n2", "2"), (0, "again", "0"), *current[1:]],
    }
    for sink in SINKS:
        for table, rows in expected.items():
            found = [tuple(row.values()) for row in project.rows(sink, table)]
            assert sorted(found, key=str) == sorted(rows, key=str), (sink, table)
    project.run_command("lanes", "resync", "lake.scd1", "--yes")
    assert project.run()["lake.scd1"]["error"] is None
    assert [tuple(row.values()) for row in project.rows("lake", "scd1")] == current, "repeated reads give the same rows"
