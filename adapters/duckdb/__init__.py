"""DuckDB in this process: sessions, types and comparisons of tables."""
