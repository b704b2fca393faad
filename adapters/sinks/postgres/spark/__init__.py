"""PostgreSQL as a target of Spark's frames."""
