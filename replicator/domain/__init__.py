"""Changes, tables and policies. Independent of engines, drivers and configuration files."""
