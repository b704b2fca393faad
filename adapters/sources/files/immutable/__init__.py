"""What kinds of files have in common that are written once: when they count, their order, rows of text and of Parquet."""
