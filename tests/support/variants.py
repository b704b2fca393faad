"""What a class that differs from another in one thing alone always has to pass of a contract: the tests of that thing.

The whole contract is always tried with one class of each kind: of sinks with `DeltaRsSink` on a local disk and with
`PostgresSink`, of sources with those that read in process, and on Spark with that of Kafka. Of what Spark computes
`test_engines_agree.py` and `test_spark_equals_local.py` say that it is the same. With REPLICATOR_LONG=1 every class passes
the whole of it.
"""

COMMIT_TESTS = frozenset(
    {
        "test_histories_under_scd1_equal_the_model",
        "test_histories_under_append_equal_the_model",
        "test_histories_under_scd2_equal_the_model",
        "test_keys_that_change_at_once_equal_the_model",
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
        "test_rejects_are_durable_first",
        "test_second_instance_is_fenced",
        "test_lanes_are_separate",
        "test_apply_is_atomic_across_lanes",
        "test_several_writes_of_a_lane_are_one_commit",
        "test_prepare_adds_columns",
        "test_skip_changes_the_state_alone",
        "test_reset_leaves_nothing",
        "test_a_target_is_swapped",
        "test_swap_takes_the_lane",
        "test_a_target_is_loaded_by_partition",
        "test_a_load_that_fails_changes_nothing",
        "test_a_key_is_erased",
        "test_compact_and_vacuum_leave_the_rows",
        "test_drop_leaves_nothing",
        "test_drop_takes_the_lane",
    }
)
"""Of sinks that differ in their commits."""

STORE_TESTS = frozenset(
    {
        "test_a_key_is_erased[by_column]",
        "test_a_load_that_fails_changes_nothing",
        "test_a_target_is_loaded_by_partition",
        "test_a_target_is_swapped[scd1]",
        "test_compact_and_vacuum_leave_the_rows",
        "test_drop_leaves_nothing",
        "test_drop_takes_the_lane",
        "test_fail_after_apply_then_retry",
        "test_histories_under_scd1_equal_the_model",
        "test_lanes_are_separate",
        "test_prepare_adds_columns",
        "test_redelivery",
        "test_rejects_are_durable_first",
        "test_reset_leaves_nothing",
        "test_second_instance_is_fenced",
        "test_skip_changes_the_state_alone",
        "test_state_is_committed_with_the_rows",
        "test_swap_takes_the_lane",
    }
)
"""Of the sink whose files are elsewhere: what makes, replaces, lists and removes them. What is in them comes from the code
of `DeltaRsSink` on a local disk, which passes the others."""

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
        "test_rejects_are_durable_first",
        "test_several_writes_of_a_lane_are_one_commit",
    }
)
"""Of a sink whose rows come into a staging table by another way. What it does else, it does by the lanes of `PostgresSink`,
which pass the others."""

SPARK_COMMIT_TESTS = frozenset(
    {
        "test_a_load_that_fails_changes_nothing",
        "test_a_target_is_loaded_by_partition",
        "test_apply_is_atomic_across_lanes",
        "test_fail_after_apply_then_retry",
        "test_left_out_changes_are_applied_out_of_band[append]",
        "test_prepare_adds_columns",
        "test_redelivery",
        "test_rejects_are_durable_first",
        "test_second_instance_is_fenced",
        "test_several_writes_of_a_lane_are_one_commit",
        "test_state_is_committed_with_the_rows",
    }
)
"""Of the sink whose rows are committed by jobs. It commits without rows, refuses gaps, takes lanes, swaps and erases by the
code of `DeltaRsSink`, which passes the others. On Spark `test_engines_agree` writes lanes side by side,
`test_spark_equals_local` has a history under each policy and appends again, `test_spark_columns` resets,
`test_spark_catalog` drops, and `test_spark_tables` has late changes, compacts, vacuums, and swaps and erases where that
takes Spark: in clustered tables. One random history takes half a minute here: they are long."""

READ_TESTS = frozenset(
    {"test_exactly_once_per_run", "test_bounded_read", "test_follows_the_stream", "test_losses_are_named", "test_end"}
)
"""Of sources on Spark or in an object store, which list and place what they read as those in process, of local files, do."""

SPLIT_TESTS = frozenset({"test_exactly_once_per_run", "test_bounded_read"})
"""Of sources on Spark that differ in how their files are cut and read: how they list and follow them is said by
`TestArchiveSparkSource`, which passes `READ_TESTS`, and by those in process."""
