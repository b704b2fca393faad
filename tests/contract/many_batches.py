"""Tests of the contract of sinks that take long where each batch does."""

MANY_BATCHES = frozenset(
    {
        "test_a_key_change_that_is_sent_again_takes_no_newer_values",
        "test_a_late_truncate_cuts_a_version_in_two",
        "test_a_write_beside_that_fails_is_repeated",
        "test_changes_that_tie_come_in_the_order_of_the_log",
        "test_deleted_rows_age_out",
        "test_deleted_rows_stay_without_a_retention",
        "test_drop_forgets_deletes",
        "test_drop_leaves_nothing",
        "test_drop_leaves_other_lanes",
        "test_employees_in_any_order",
        "test_null_changes_nothing_where_there_is_a_row",
        "test_rejects_of_a_history_are_durable_first",
        "test_sales_in_any_order",
        "test_soft_deletes_leave_rows",
        "test_text_is_ordered_by_its_bytes",
        "test_what_a_connector_counts_anew_is_told",
        "test_what_a_lower_truncate_marked_ages_out",
    }
)
"""Long for Spark and for object stores; the sinks on a local disk and in a database, with which these share what is shown
here, always try them."""
