"""Tables in a schema of a PostgreSQL database."""
