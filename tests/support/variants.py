"""The tests of a contract that every variant of a class runs: those of the thing in which it differs.

The whole contract always runs with one class of each kind: sinks with `DeltaRsSink` on a local disk and with `PostgresSink`,
sources with those that read in process, and on Spark with Kafka. `test_engines_agree.py` and `test_spark_equals_local.py`
show that Spark computes the same results. With REPLICATOR_LONG=1 every class runs the whole contract.
"""

COMMIT_TESTS = frozenset(
    {
        "test_histories_under_scd1_equal_the_model",
        "test_histories_under_append_equal_the_model",
        "test_histories_under_scd2_equal_the_model",
        "test_key_changes_in_one_statement_equal_the_model",
        "test_changes_out_of_order_equal_the_model",
        "test_late_changes_are_rejected",
        "test_left_out_changes_are_applied_out_of_band",
        "test_state_is_committed_with_the_rows",
        "test_empty_write_advances_position",
        "test_stale_write_advances_position",
        "test_redelivery",
        "test_redelivery_under_append",
        "test_gap_is_refused",
        "test_fail_after_apply_then_retry",
        "test_rejects_are_stored_before_the_commit",
        "test_second_instance_is_fenced",
        "test_lanes_are_separate",
        "test_apply_is_atomic_across_lanes",
        "test_several_writes_of_a_lane_are_one_commit",
        "test_prepare_adds_columns",
        "test_skip_changes_only_the_state",
        "test_reset_removes_all_rows",
        "test_a_target_is_swapped",
        "test_swap_of_a_held_lane_fences_one_instance",
        "test_a_target_is_loaded_by_partition",
        "test_a_load_that_fails_changes_nothing",
        "test_a_key_is_erased",
        "test_compact_and_vacuum_leave_the_rows",
        "test_drop_removes_rows_state_and_metadata",
        "test_drop_of_a_held_lane_fences_one_instance",
    }
)
"""For sinks that differ in their commits."""

STORE_TESTS = frozenset(
    {
        "test_a_key_is_erased[by_column]",
        "test_a_load_that_fails_changes_nothing",
        "test_a_target_is_loaded_by_partition",
        "test_a_target_is_swapped[scd1]",
        "test_compact_and_vacuum_leave_the_rows",
        "test_drop_removes_rows_state_and_metadata",
        "test_drop_of_a_held_lane_fences_one_instance",
        "test_fail_after_apply_then_retry",
        "test_histories_under_scd1_equal_the_model",
        "test_lanes_are_separate",
        "test_prepare_adds_columns",
        "test_redelivery",
        "test_rejects_are_stored_before_the_commit",
        "test_reset_removes_all_rows",
        "test_second_instance_is_fenced",
        "test_skip_changes_only_the_state",
        "test_state_is_committed_with_the_rows",
        "test_swap_of_a_held_lane_fences_one_instance",
    }
)
"""For the sink with files in an object store: tests that create, replace, list and remove files. The content of the files
comes from the code of `DeltaRsSink` on a local disk, which runs the other tests."""

COPY_TESTS = frozenset(
    {
        "test_a_load_that_fails_changes_nothing",
        "test_a_target_is_loaded_by_partition",
        "test_apply_is_atomic_across_lanes",
        "test_fail_after_apply_then_retry",
        "test_histories_under_scd1_equal_the_model",
        "test_late_changes_are_rejected",
        "test_prepare_adds_columns",
        "test_redelivery",
        "test_redelivery_under_append",
        "test_rejects_are_stored_before_the_commit",
        "test_several_writes_of_a_lane_are_one_commit",
        "test_value_of_an_earlier_change_with_a_higher_offset",
    }
)
"""For a sink that loads its staging table in another way. For all else it uses the lanes of `PostgresSink`, which run the
other tests."""

SPARK_COMMIT_TESTS = frozenset(
    {
        "test_a_load_that_fails_changes_nothing",
        "test_a_target_is_loaded_by_partition",
        "test_apply_is_atomic_across_lanes",
        "test_fail_after_apply_then_retry",
        "test_left_out_changes_are_applied_out_of_band[append]",
        "test_prepare_adds_columns",
        "test_redelivery",
        "test_rejects_are_stored_before_the_commit",
        "test_second_instance_is_fenced",
        "test_several_writes_of_a_lane_are_one_commit",
        "test_state_is_committed_with_the_rows",
        "test_value_of_an_earlier_change_with_a_higher_offset",
    }
)
"""For the sink that commits rows by Spark jobs. It uses the code of `DeltaRsSink`, which runs the other tests, for commits
without rows, refused gaps, fencing, swaps and erasures. Other tests on Spark:

- `test_engines_agree` writes several lanes together.
- `test_spark_equals_local` has a history under each policy, and appends again.
- `test_spark_columns` resets. `test_spark_catalog` drops.
- `test_spark_tables` has late changes, compacts, vacuums, and swaps and erases in clustered tables, which needs Spark.

One random history takes half a minute here, so random histories are long tests."""

READ_TESTS = frozenset(
    {
        "test_exactly_once_per_run",
        "test_bounded_read",
        "test_follows_the_stream",
        "test_lost_positions_are_reported",
        "test_start_and_end_of_the_stream_are_returned",
    }
)
"""For sources on Spark or in an object store. They list and order files like the sources in process of local files."""

SPLIT_TESTS = frozenset({"test_exactly_once_per_run", "test_bounded_read"})
"""For sources on Spark that differ in splitting and reading their files. `TestArchiveSparkSource`, which runs `READ_TESTS`,
and the sources in process cover listing and following."""
