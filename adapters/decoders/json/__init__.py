"""JSON text to columns: parsing and types for all formats that are JSON."""
