"""JSON text as columns: records of any format that is JSON are taken apart and typed by these."""
