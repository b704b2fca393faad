"""Delta Lake as a target that Spark's executors write."""
