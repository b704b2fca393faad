"""Rows of a target are compared by the columns that identify them."""

from dataclasses import replace

import pyarrow as pa

from replicator.application.lane_schema import list_identity_columns
from replicator.domain.differences import compare_rows, compare_tables
from replicator.domain.transform.columns import ColumnRule, ColumnTransforms
from replicator.domain.transform.rows import RowTransforms
from replicator.testing.delivery import make_lane


def test_versions_with_the_same_start_are_different_rows() -> None:
    """Two updates of a row in one transaction have one time."""
    versions = pa.table(
        {"id": [1, 1], "v": ["a", "b"], "__START_AT": [7, 7], "_cdc_seq_1": [70, 71], "_cdc_end_seq_1": [71, None]}
    )
    keys = list_identity_columns(make_lane("scd2"), ["id"], versions.column_names)
    assert keys == ["id", "_cdc_seq_1"]
    diff = compare_rows(versions, versions, keys)
    assert not (len(diff.missing) or len(diff.extra) or len(diff.different))


def test_changed_row_is_found_by_its_renamed_key() -> None:
    renames = RowTransforms(column_transforms=ColumnTransforms((("id", ColumnRule(rename="number")),)))
    lane = replace(make_lane("scd1"), row_transforms=renames)
    before, after = pa.table({"number": [1, 2], "v": ["a", "b"]}), pa.table({"number": [1, 2], "v": ["a", "c"]})
    diff = compare_tables(before, after, list_identity_columns(lane, ["id"], before.column_names))
    assert (diff.same, diff.different, diff.only_before, diff.only_after) == (1, 1, 0, 0)


def test_appended_changes_are_found_by_their_event() -> None:
    assert list_identity_columns(make_lane("append"), ["id"], ["id", "_event_id"]) == ["_event_id"]
