"""PostgreSQL as a target of Spark frames."""
