"""What engines do with Arrow tables, whoever holds the rest of the rows."""
