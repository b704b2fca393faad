"""PostgreSQL connections, tables, types and names, shared by sources, sinks and projections."""
