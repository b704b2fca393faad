"""Masking of raw records in formats whose records contain nothing but rows.

A stored record has masked values wherever it contains them. Its header (`records.MaskHeader`) lists the masked columns, so
that they are not masked again when the record is read back. Live records are masked before they are decoded, so reading a
stored record gives the same result.

Each format shows where its records contain values (`records.RecordOpener`). Values get the type of their column, so that
a value has one text in every notation. Unreadable records that may belong to a table with private columns are stored
without content.
"""
