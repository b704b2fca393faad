"""The read side over HTTP: tables, rows, histories, and HTML pages."""
